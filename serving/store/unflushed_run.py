"""Unwritten events of a run, its streamed answer, and an estimate of the memory that both take."""

import asyncio
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from conductor.model.messages import contents_of
from conductor.run.events import AnswerDelta
from conductor.run.record import Record, RunRecords
from serving.store.rows import ENDED, EventRow, Item, event_row
from serving.store.statements import RunWrite, run_write

BYTES_BESIDE_TEXT = 4_000
"""Estimated size of a record without its texts, in bytes."""
BYTES_A_LOGPROB = 150
"""Estimated size of a token with its probability, in bytes."""


class AnswerBuffer:
    """Buffer for the streamed parts of an answer, for clients that start to watch a run while it is active."""

    def __init__(self) -> None:
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        self._began_s: float | None = None

    def add(self, piece: AnswerDelta) -> None:
        if self._began_s is None:
            self._began_s = piece.at_s
        self._text.write(piece.text)
        self._reasoning.write(piece.reasoning)

    def take(self) -> AnswerDelta | None:
        """Return the whole text as one event and clear the buffer. Return None if the buffer is empty."""
        began_s, self._began_s = self._began_s, None
        piece = AnswerDelta(began_s or 0.0, self._text.getvalue(), self._reasoning.getvalue())
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        return None if began_s is None else piece


@dataclass(slots=True, eq=False)
class UnflushedRun:
    """Run of this replica that is active or not completely written.

    An item is a numbered event (`serving/store/rows.py`). A kept run outlives its client.

    Args:
        rows: rows whose write is not confirmed. They are never changed, because a write that seemed to fail
            may have succeeded.
        undelivered: items of a kept run that the listener receives only after they are written. If another
            replica takes over the run, it continues from the stored items and reuses the numbers of the
            unwritten ones.
        records: current records of the run and of the runs nested in it, by id.
        final_bytes: estimated memory of `final` in bytes.
        is_kept: whether the run outlives its client. Its answer is then written while it is streamed.
        is_watched: whether a client watches the run. Its answer is then written while it is streamed.
        answer: streamed answer, which is written only if a client starts to watch the run.
        tried: event that is set after the first attempt to write the run.
    """

    seq: int = 0
    items: list[Item] = field(default_factory=list[Item])
    rows: list[EventRow] = field(default_factory=list[EventRow])
    undelivered: list[Item] = field(default_factory=list[Item])
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    final: RunRecords | None = None
    final_bytes: int = 0
    is_kept: bool = False
    is_watched: bool = False
    answer: AnswerBuffer = field(default_factory=AnswerBuffer)
    first_item_s: float = 0.0
    packed_s: float = 0.0
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    is_begun: bool = False

    @property
    def key_id(self) -> str:
        """Id of the key that pays for the run, or "" if the run has not ended."""
        return self.final.record.account.key_id if self.final else ""

    @property
    def n_bytes(self) -> int:
        """Estimated memory of the run in bytes, after its end."""
        return self.final_bytes + sum(len(row.body) for row in self.rows)

    @property
    def is_waiting(self) -> bool:
        """True if the run has something to write."""
        return bool(self.items or self.rows or self.final)


@dataclass(frozen=True, slots=True, eq=False)
class RunSnapshot:
    """Snapshot of a run for one write.

    Args:
        run: the run. Its `rows` begin with the rows of `write`.
        undelivered: number of items of `run.undelivered` that this write contains.
    """

    id: str
    run: UnflushedRun
    undelivered: int
    final: RunRecords | None
    write: RunWrite


def pack(id: str, run: UnflushedRun) -> tuple[RunSnapshot | None, list[Item]]:
    """Pack a run for a write. Return it, or None if it cannot be written yet, and the packed items."""
    records = run.final or current_records(id, run)
    if records is None:
        return None, []
    items = pack_items(id, run)
    if run.is_kept:
        run.undelivered += items
    snapshot = RunSnapshot(
        id, run, len(run.undelivered), run.final, run_write(records, tuple(run.rows), is_kept=run.is_kept)
    )
    return snapshot, items


def pack_items(id: str, run: UnflushedRun) -> list[Item]:
    """Pack the items that are not in a row yet into a new row, and return them."""
    items, run.items = run.items, []
    if items:
        run.rows.append(event_row(id, items))
    return items


def current_records(id: str, run: UnflushedRun) -> RunRecords | None:
    """Return the current records of an active run.

    Return None if the run has ended or waits for tool results.

    `RunJournal.put` writes an ended run, after `content.py` has removed what must not be stored.
    `RunJournal.write_suspended` writes a run that waits.
    """
    inner = {each: record for each, record in run.records.items() if each != id}
    record = run.records.get(id)
    if record is None or record.status in ENDED or record.status == "waiting":
        return None
    return RunRecords(record, inner)


def weight(records: RunRecords) -> int:
    """Estimate the memory of a run in bytes. A text that several steps share counts once."""
    sizes = {id(each): sys.getsizeof(each) for record in records for each in _contents(record)}
    n_likely = sum(
        1 + len(token.top) for record in records for call in record.calls for token in call.logprobs
    )
    return BYTES_BESIDE_TEXT * (1 + len(records.inner)) + BYTES_A_LOGPROB * n_likely + sum(sizes.values())


def _contents(record: Record) -> Iterator[object]:
    yield record.answer
    yield from contents_of(record.task.conversation)
    for call in record.calls:
        yield from (call.output, call.reasoning)
    for plan in record.plans:
        yield from contents_of(plan.prompt)
        for step in plan.steps:
            yield from (step.subtask, step.needs)
            yield from contents_of(step.prompt)
