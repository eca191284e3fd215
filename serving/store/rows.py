"""Conversion of runs and their events to rows of the store, and back.

This module does not access the database.

The column `body` contains compressed JSON, written by `conductor/run/codec.py`. A run's events are stored as
items. An item is an event with a number. The numbers count the events of the run and of the runs nested in it
together.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from conductor.model.messages import Text
from conductor.run import codec
from conductor.run.events import AnswerDelta, Event, RunDetached, WorkDelta
from conductor.run.fold import after
from conductor.run.record import Record, RunRecords
from serving.accounts.money import to_pico
from serving.database.clock import now_us
from serving.store.content import without_content

T = TypeVar("T")
LEVEL = 1
"""Compression level of zlib. It reduces a record by about 80 % in a third of a millisecond."""
SMALL_BYTES, SMALL_WINDOW, SMALL_MEMORY = 8192, 13, 6
"""Texts of up to `SMALL_BYTES` bytes are compressed with a small zlib window and little memory.

Allocating the default window would take three times as long as packing a short run.
"""
MOST_CHARS = 20_000
"""Number of characters of the question, and of the answer, in which the filter searches for words."""
ENDED = ("finished", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class RunRow:
    id: str
    key_id: str | None
    team_id: str | None
    model: str
    status: str
    owner: str
    made_us: int
    ended_us: int | None
    cost: int | None
    input_tokens: int
    output_tokens: int
    trace_id: str | None
    kept: int
    numbers: bytes
    body: bytes | None
    body_bytes: int
    conversation: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """Row of the table `run_event`, the events of a run between two writes. Its fields are the columns."""

    run_id: str
    first_seq: int
    last_seq: int
    at_us: int
    body: bytes


class Item(msgspec.Struct, frozen=True):
    """Numbered event of a run.

    Args:
        event: the event. Successive parts of a streamed answer are joined into one event.
        record: record after the event, if this is the first item of the run that this replica writes.
            Otherwise None.
    """

    seq: int
    run_id: str
    event: Event
    record: Record | None = None


class _ItemShape(msgspec.Struct, omit_defaults=True):
    """JSON form of an item. `run` is empty if the event belongs to the run of the row, not to a nested run."""

    seq: int
    event: Event
    run: str = ""
    record: Record | None = None


def run_row(records: RunRecords, *, is_kept: bool) -> RunRow:
    """Return the row for a run in its current state. The row has a body only if the run has ended.

    Args:
        records: record of the run and of its inner runs.
        is_kept: whether the run outlives its client and its replica.
    """
    record = records.record
    has_ended = record.status in ENDED
    body = pack_records(records) if has_ended and records.has_content else None
    usage = record.usage
    return RunRow(
        record.id,
        record.account.key_id or None,
        record.account.team_id or None,
        record.model,
        record.status,
        record.owner,
        made_us(record),
        now_us() if has_ended else None,
        _cost(record),
        _count(usage.input_tokens),
        _count(usage.output_tokens),
        record.trace_id,
        int(is_kept),
        pack_records(without_content(records)),
        body,
        len(body) if body else 0,
        record.task.sampling.options.conversation or None,
    )


def workers_of(records: RunRecords) -> list[str]:
    """Return the sorted names of the workers that a run, and the runs nested in it, have called."""
    return sorted({call.worker for record in records for call in record.calls})


def text_of(records: RunRecords) -> str:
    """Return question and answer in lower case, which filters search, or "" if texts are not stored."""
    if not records.has_content:
        return ""
    record = records.record
    question = "\n".join(_questions(record))
    return storable(f"{question[-MOST_CHARS:]}\n{record.answer[:MOST_CHARS]}".casefold())


def storable(text: str) -> str:
    """Return `text` without NUL and lone surrogates, which PostgreSQL text cannot contain."""
    return text.replace("\0", " ").encode(errors="replace").decode()


def _questions(record: Record) -> Iterator[str]:
    for message in record.task.conversation:
        if message.role == "user":
            yield from (part.text for part in message.parts if isinstance(part, Text))


def event_row(run_id: str, items: Sequence[Item]) -> EventRow:
    shapes = [
        _ItemShape(each.seq, each.event, each.run_id if each.run_id != run_id else "", each.record)
        for each in items
    ]
    return EventRow(run_id, items[0].seq, items[-1].seq, now_us(), _pack(shapes))


def load_items(run_id: str, bodies: Iterable[bytes]) -> list[Item]:
    return [
        Item(shape.seq, shape.run or run_id, shape.event, shape.record)
        for body in bodies
        for shape in _unpack_items(body)
    ]


def load_records(data: bytes, *, has_content: bool) -> RunRecords:
    """Unpack a run's records from `pack_records` or `run_row`. Raise UnreadableRecord for damaged or newer
    ones.
    """
    first, *inner = _unpack(list[Record], data)
    return RunRecords(first, {record.id: record for record in inner}, has_content)


def fold_items(run_id: str, items: Iterable[Item]) -> RunRecords | None:
    """Rebuild the records of a run from its events. Return None if its first event is missing."""
    records: dict[str, Record] = {}
    for item in items:
        if item.record is not None:
            records[item.run_id] = item.record
        elif item.run_id in records:
            records[item.run_id] = after(records[item.run_id], item.event)
    top = records.pop(run_id, None)
    return None if top is None else RunRecords(top, records)


def mark_lost(records: RunRecords, billed_usd: Decimal | None = None) -> RunRecords:
    """Return records with the status `lost` and aborted calls: its replica ended and none continues it.
    `billed_usd` is its cost in the ledger.
    """
    inner = {id: _lose(record) for id, record in records.inner.items()}
    lost = replace(records, record=_lose(records.record), inner=inner)
    if billed_usd is None:
        return lost
    return replace(lost, record=replace(lost.record, lost_usd=lost.lost_usd(billed_usd)))


def _lose(record: Record) -> Record:
    if record.status not in ("running", "detached"):
        return record
    return replace(after(record, RunDetached(record.wall_s)), status="lost")


def top_run(run_id: str) -> str:
    """Return the id of the top-level run. The id of a nested run is this id, followed by a dot and a suffix."""
    return run_id.partition(".")[0]


def join_pieces(one: AnswerDelta, other: AnswerDelta) -> AnswerDelta:
    """Join two successive parts of a streamed answer."""
    return AnswerDelta(one.at_s, one.text + other.text, one.reasoning + other.reasoning)


def join_work(items: list[Item], run_id: str, piece: WorkDelta) -> bool:
    """Join a part of a step's text with its previous one at the end of `items`, where only other steps' parts
    may follow. Return False if there is none.
    """
    for n in range(len(items) - 1, -1, -1):
        event = items[n].event
        if not isinstance(event, WorkDelta) or items[n].run_id != run_id:
            return False
        if (event.plan, event.step) == (piece.plan, piece.step):
            joined = replace(event, text=event.text + piece.text, reasoning=event.reasoning + piece.reasoning)
            items[n] = replace(items[n], event=joined)
            return True
    return False


def made_us(record: Record) -> int:
    """Return the start of a run in microseconds since 1970."""
    return int(record.created * 1_000_000)


def _cost(record: Record) -> int | None:
    cost_usd = record.cost_usd
    try:
        return None if cost_usd is None else to_pico(cost_usd)
    except ValueError:  # the upstream reported an invalid amount
        return None


def _count(tokens: int) -> int:
    return min(max(tokens, 0), 2**63 - 1)


def pack_records(records: RunRecords) -> bytes:
    """Pack the complete records of a run and of the runs nested in it."""
    return _pack(list(records))


def _pack(value: Any) -> bytes:
    written = codec.encode(value)
    if len(written) > SMALL_BYTES:
        return zlib.compress(written, LEVEL)
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, SMALL_WINDOW, SMALL_MEMORY)
    return packing.compress(written) + packing.flush()


def _unpack_items(data: bytes) -> list[_ItemShape]:
    try:
        return _unpack(list[_ItemShape], data)
    except codec.UnreadableRecord:
        shapes: list[dict[str, Any]] = _unpack(list[dict[str, Any]], data)
        current_shapes = [
            each for each in shapes if each["event"].get(codec.TYPE) not in codec.RETIRED_EVENTS
        ]
        return codec.load(list[_ItemShape], current_shapes)


def _unpack(kind: type[T], data: bytes) -> T:
    try:
        return codec.decode(kind, zlib.decompress(data))
    except codec.UnreadableRecord:
        raise
    except (zlib.error, ValueError) as exc:
        raise codec.UnreadableRecord(f"The stored record of the run is damaged: {exc}.") from exc
