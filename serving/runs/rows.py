"""Runs and their events as rows of the store, and back. Knows no database.

A body is the JSON of `conductor/run/codec.py`, compressed. What happened in a run is a list of items, each
with a number of its own, counted over the run and the runs inside it.
"""

import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from conductor.run import codec
from conductor.run.events import AnswerDelta, Event, RunDetached, WorkDelta
from conductor.run.fold import after
from conductor.run.record import Record, RunRecords
from serving.accounts.money import to_pico
from serving.runs.numbers import without_content

T = TypeVar("T")
LEVEL = 1
"""Of zlib: four fifths of a record go, in a third of a millisecond."""
SMALL_BYTES, SMALL_WINDOW, SMALL_MEMORY = 8192, 13, 6
"""A text that is no longer has room in a small window of zlib's. Making the usual one takes three times as long as packing
the text of a short run.
"""
ENDED = ("finished", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as its table has it. Fields are columns."""

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


@dataclass(frozen=True, slots=True)
class EventRow:
    """What happened in a run between two writes. Fields are columns."""

    run_id: str
    first_seq: int
    last_seq: int
    at_us: int
    body: bytes


class Item(msgspec.Struct, frozen=True):
    """Something that happened.

    Args:
        seq: its number; also that of the pieces of the answer.
        run_id: the run, or one inside it.
        event: what happened. Pieces of the answer that came together are one.
        record: as it was then, where the run is told of for the first time by this replica.
    """

    seq: int
    run_id: str
    event: Event
    record: Record | None = None


class _ItemShape(msgspec.Struct, omit_defaults=True):
    """The JSON of an item. `run` is empty for the run that the row is of."""

    seq: int
    event: Event
    run: str = ""
    record: Record | None = None


def run_row(records: RunRecords, *, kept: bool) -> RunRow:
    """The row of a run as it is now; with its body, where it has ended."""
    record = records.record
    has_ended = record.status in ENDED
    body = _pack_records(records) if has_ended and records.has_content else None
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
        int(kept),
        _pack_records(without_content(records)),
        body,
        len(body) if body else 0,
    )


def event_row(run_id: str, items: Sequence[Item]) -> EventRow:
    """What happened, at least one thing, as a row."""
    shapes = [
        _ItemShape(each.seq, each.event, each.run_id if each.run_id != run_id else "", each.record)
        for each in items
    ]
    return EventRow(run_id, items[0].seq, items[-1].seq, now_us(), _pack(shapes))


def load_items(run_id: str, bodies: Iterable[bytes]) -> list[Item]:
    """The items of rows, in order."""
    return [
        Item(shape.seq, shape.run or run_id, shape.event, shape.record)
        for body in bodies
        for shape in _unpack_items(body)
    ]


def pack_records(records: RunRecords) -> bytes:
    """A run and the runs inside it, whole."""
    return _pack_records(records)


def load_records(packed: bytes, *, has_content: bool) -> RunRecords:
    """What `run_row` packed."""
    first, *inner = _unpack(list[Record], packed)
    return RunRecords(first, {record.id: record for record in inner}, has_content)


def fold_items(run_id: str, items: Iterable[Item]) -> RunRecords | None:
    """The records as the events made them; None where the first ones are not there any more."""
    records: dict[str, Record] = {}
    for item in items:
        if item.record is not None:
            records[item.run_id] = item.record
        elif item.run_id in records:
            records[item.run_id] = after(records[item.run_id], item.event)
    top = records.pop(run_id, None)
    return None if top is None else RunRecords(top, records)


def mark_lost(records: RunRecords, billed_usd: Decimal | None = None) -> RunRecords:
    """Return a run whose replica ended and which is not continued. Its open calls are cut.

    Args:
        records: as the events made them.
        billed_usd: what the ledger charged for the run; None if nothing.
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
    """The run of which `run_id` is a part: runs inside a run are named after it."""
    return run_id.partition(".")[0]


def join_pieces(one: AnswerDelta, other: AnswerDelta) -> AnswerDelta:
    """Two pieces of an answer that follow one another."""
    return AnswerDelta(one.at_s, one.text + other.text, one.reasoning + other.reasoning)


def join_work(items: list[Item], run_id: str, piece: WorkDelta) -> bool:
    """Join a piece with the one of the same text among the newest of `items`; False: there is none."""
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
    """When a run began, as the store has it."""
    return int(record.created * 1_000_000)


CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""PostgreSQL's, in microseconds. SQLite's is the machine's, on which all its processes are."""


def now_us() -> int:
    """The time of day."""
    return time.time_ns() // 1000


def _cost(record: Record) -> int | None:
    cost_usd = record.cost_usd
    try:
        return None if cost_usd is None else to_pico(cost_usd)
    except ValueError:  # no amount: whoever said so is not believed
        return None


def _count(tokens: int) -> int:
    return min(max(tokens, 0), 2**63 - 1)


def _pack_records(records: RunRecords) -> bytes:
    return _pack(list(records))


def _pack(value: Any) -> bytes:
    written = codec.encode(value)
    if len(written) > SMALL_BYTES:
        return zlib.compress(written, LEVEL)
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, SMALL_WINDOW, SMALL_MEMORY)
    return packing.compress(written) + packing.flush()


def _unpack_items(packed: bytes) -> list[_ItemShape]:
    try:
        return _unpack(list[_ItemShape], packed)
    except codec.UnreadableRecord:
        shapes: list[dict[str, Any]] = _unpack(list[dict[str, Any]], packed)
        known = [each for each in shapes if each["event"].get(codec.TYPE) not in codec.RETIRED_EVENTS]
        return codec.load(list[_ItemShape], known)


def _unpack(kind: type[T], packed: bytes) -> T:
    try:
        return codec.decode(kind, zlib.decompress(packed))
    except codec.UnreadableRecord:
        raise
    except (zlib.error, ValueError) as exc:
        raise codec.UnreadableRecord(f"What is stored of the run is damaged: {exc}.") from exc
