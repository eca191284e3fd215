"""What of a run is not written to the store yet, and how it is packed for it."""

import asyncio
from dataclasses import dataclass, field

from conductor.run.record import Record, RunRecords
from serving.runs.rows import ENDED, EventRow, Item, event_row
from serving.runs.said import AnswerSoFar
from serving.runs.statements import RunWrite, run_write


@dataclass(slots=True, eq=False)
class Noted:
    """A run of this replica that is under way, or not all written.

    Args:
        seq: of its newest item.
        items: not written yet.
        rows: of items that could not be written; they stay as they are, because perhaps they were.
        untold: items of a run that another replica may go on with: nobody is told of them before they are written, because it
            goes on from what is written, and gives their numbers to others.
        records: as they are now, its own and those of the runs inside it.
        final: its records once it has ended.
        final_bytes: about how many bytes of memory these hold.
        is_kept: whether it outlives its client, so that pieces of the answer are written too.
        is_watched: whether somebody watches it, so that they are from now on.
        said: of its answer, what is not to be written unless somebody watches.
        noted_s: when the first of it was noted here, by `time.monotonic`; 0: nothing was.
        packed_s: when it was last packed, by the loop's clock; 0: never.
        tried: set once something of it was written, or could not be.
        is_begun: whether something of it was written.
    """

    seq: int = 0
    items: list[Item] = field(default_factory=list[Item])
    rows: list[EventRow] = field(default_factory=list[EventRow])
    untold: list[Item] = field(default_factory=list[Item])
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    final: RunRecords | None = None
    final_bytes: int = 0
    is_kept: bool = False
    is_watched: bool = False
    said: AnswerSoFar = field(default_factory=AnswerSoFar)
    noted_s: float = 0.0
    packed_s: float = 0.0
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    is_begun: bool = False

    @property
    def key_id(self) -> str:
        """The key that asked, once it has ended."""
        return self.final.record.account.key_id if self.final else ""

    @property
    def n_bytes(self) -> int:
        """About how many bytes of memory it holds, once it has ended."""
        return self.final_bytes + sum(len(row.body) for row in self.rows)

    @property
    def is_waiting(self) -> bool:
        """Whether something of it is to be written."""
        return bool(self.items or self.rows or self.final)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A run as it was when it was packed.

    Args:
        id: of the run.
        run: whose `rows` begin with those of `write`.
        untold: so many of its items wait to be told.
        final: its records, where it had ended by then.
        write: for the store.
    """

    id: str
    run: Noted
    untold: int
    final: RunRecords | None
    write: RunWrite


def pack(id: str, run: Noted) -> tuple[Packed | None, list[Item]]:
    """What is to be written of a run, None: nothing yet; and what of it is new."""
    records = run.final or current_records(id, run)
    if records is None:
        return None, []
    items = pack_items(id, run)
    if run.is_kept:
        run.untold += items
    packed = Packed(
        id, run, len(run.untold), run.final, run_write(records, tuple(run.rows), kept=run.is_kept)
    )
    return packed, items


def pack_items(id: str, run: Noted) -> list[Item]:
    """Make a row of the items that are not written yet; gives them."""
    items, run.items = run.items, []
    if items:
        run.rows.append(event_row(id, items))
    return items


def current_records(id: str, run: Noted) -> RunRecords | None:
    """The records of a run under way. One that has just ended is written once it is put: what may be kept of its
    texts is decided there (`content.py`). One that is to wait is written by `suspend` alone.
    """
    inner = {each: record for each, record in run.records.items() if each != id}
    record = run.records.get(id)
    if record is None or record.status in ENDED or record.status == "waiting":
        return None
    return RunRecords(record, inner)
