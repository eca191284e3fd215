"""Write operations on runs. All are idempotent.

The owner of a run is the replica that executes it. After another replica has taken over a run, writes of the
earlier owner are ignored. A kept run outlives its client, and another replica continues it if its owner ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, or_, select, update

from conductor.run.record import RunRecords
from serving.accounts.money import MAX_PICO
from serving.database.clock import NOW_US
from serving.database.inserts import RowInsert
from serving.database.schema import hold, ledger, replica, run, run_cost, run_event, run_text, run_worker
from serving.database.writer import Operation
from serving.store.content import question_of
from serving.store.rows import EventRow, RunRow, run_row, storable, text_of, workers_of
from serving.store.run_costs import COST_COLUMNS, DAY_US, RunCostRow, rows_of

RUN_COLUMNS = [field.name for field in fields(RunRow)]
EVENT_COLUMNS = [field.name for field in fields(EventRow)]
RUN_VALUES, EVENT_VALUES = attrgetter(*RUN_COLUMNS), attrgetter(*EVENT_COLUMNS)
COST_VALUES = attrgetter(*COST_COLUMNS)
FIXED = {"id", "key_id", "team_id", "model", "owner", "made_us", "trace_id", "conversation"}
"""Columns that do not change after the first write."""


def _may_write(new: Any) -> ColumnElement[bool]:
    """Return the condition for `new` to replace a run's state: it is the owner's, and the run has not ended."""
    is_over = run.c.ended_us.is_not(None) & (run.c.status != "lost")
    is_late = (run.c.status == "waiting") & (new.status == "running")
    return (run.c.owner == new.owner) & ~is_over & ~is_late


PUT_RUNS = RowInsert(
    run,
    RUN_COLUMNS,
    update=[name for name in RUN_COLUMNS if name not in FIXED],
    where=_may_write,
    returning=(run.c.id, run.c.cancel_us, run.c.watch_us),
)
PUT_EVENTS = RowInsert(run_event, EVENT_COLUMNS)
PUT_WORKERS = RowInsert(run_worker, ["run_id", "worker", "made_us"])
PUT_COSTS = RowInsert(run_cost, COST_COLUMNS)
PUT_TEXTS = RowInsert(run_text, ["run_id", "text", "question"])
IS_ORPHAN = (
    run.c.ended_us.is_(None)
    & (run.c.status != "waiting")
    & ~select(replica.c.id).where(replica.c.id == run.c.owner, replica.c.lease_until_us >= NOW_US).exists()
)
"""SQL condition for active runs whose owner's lease has expired."""
MOST_TAKES = 3
"""Times that a run is taken over before it is lost, because it may be what crashes its replicas."""
SPENT = select(func.sum(ledger.c.amount)).where(ledger.c.run_id == run.c.id).scalar_subquery()
LOSE = (
    update(run)
    .where(IS_ORPHAN, or_(run.c.kept == 0, run.c.takes >= MOST_TAKES, run.c.made_us < bindparam("oldest_us")))
    .values(status="lost", ended_us=NOW_US, cost=func.coalesce(SPENT, run.c.cost))
    .returning(run.c.id)
)
"""Statement that marks dead runs as lost. The cost comes from the ledger, because the last events of a lost run may not have been written."""
OPEN_HOLDS = select(func.sum(hold.c.amount)).where(hold.c.run_id == run.c.id, hold.c.state == "open")
RECORDED = select(func.sum(run_cost.c.cost)).where(run_cost.c.run_id == run.c.id, run_cost.c.worker != "")
LOST_COSTS = select(
    *run.c["id", "made_us", "key_id", "team_id", "model"],
    func.coalesce(SPENT, run.c.cost).label("cost"),
    OPEN_HOLDS.scalar_subquery().label("held"),
    RECORDED.scalar_subquery().label("recorded"),
).where(run.c.id.in_(bindparam("ids", expanding=True)))
ORPHANS = (
    select(run.c.id)
    .where(IS_ORPHAN, run.c.kept == 1, run.c.takes < MOST_TAKES)
    .order_by(run.c.made_us)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
    .correlate(None)
)
TAKE = update(run).where(run.c.id.in_(ORPHANS)).values(owner=bindparam("taker"), takes=run.c.takes + 1)
IS_MINE = (run.c.owner == bindparam("taker")) & run.c.ended_us.is_(None)
MINE = select(run.c.id).where(IS_MINE, run.c.kept == 1, run.c.status != "waiting").order_by(run.c.made_us)


@dataclass(frozen=True, slots=True)
class RunWrite:
    """Write of a run: its current state, and its events since the last write.

    Args:
        row: row of the run.
        events: rows with the events since the last write.
        workers: names of the workers that an ended run has called, for filters.
        text: text of an ended run in which filters search for words, or "".
        question: beginning of the question of an ended run, or "".
        costs: rows with the cost of a run that has ended or waits for tool results.
    """

    row: RunRow
    events: tuple[EventRow, ...]
    workers: tuple[str, ...] = ()
    text: str = ""
    question: str = ""
    costs: tuple[RunCostRow, ...] = ()

    @property
    def worker_rows(self) -> list[tuple[str, str, int]]:
        return [(self.row.id, worker, self.row.made_us) for worker in self.workers]


def run_write(records: RunRecords, events: tuple[EventRow, ...], *, is_kept: bool) -> RunWrite:
    """Return the write that stores a run in its current state."""
    row = run_row(records, is_kept=is_kept)
    costs = tuple(rows_of(records)) if row.ended_us is not None or row.status == "waiting" else ()
    if row.ended_us is None:
        return RunWrite(row, events, costs=costs)
    text, question = text_of(records), storable(question_of(records))
    row = replace(row, body_bytes=row.body_bytes + len(text.encode()) + len(question.encode()))
    return RunWrite(row, events, tuple(workers_of(records)), text, question, costs)


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Request of the replica `owner` to take over at most `limit` runs."""

    owner: str
    limit: int


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a `RunWrite`.

    Args:
        is_owner: whether the write was applied. It is applied if this replica still owns the run and the run
            had not ended before.
    """

    is_owner: bool
    is_cancelled: bool = False
    is_watched: bool = False


def write_runs(connection: Connection, items: Sequence[RunWrite]) -> list[Written]:
    """Write runs and their events. Ignore the writes of replicas that do not own their run any more.

    A run may have rows of costs from the time when it waited for tool results or was lost. They are replaced.
    """
    rows = PUT_RUNS.execute(connection, [RUN_VALUES(item.row) for item in items])
    results = {row.id: Written(True, row.cancel_us is not None, row.watch_us is not None) for row in rows}
    mine = [item for item in items if item.row.id in results]
    PUT_EVENTS.execute(connection, [EVENT_VALUES(row) for item in mine for row in item.events])
    PUT_WORKERS.execute(connection, [row for item in mine for row in item.worker_rows])
    PUT_TEXTS.execute(connection, [(item.row.id, item.text, item.question) for item in mine if item.text])
    if ended := [item.row.id for item in mine if item.costs or item.row.ended_us is not None]:
        connection.execute(delete(run_cost).where(run_cost.c.run_id.in_(ended)))
    PUT_COSTS.execute(connection, [COST_VALUES(row) for item in mine for row in item.costs])
    return [results.get(item.row.id, Written(is_owner=False)) for item in items]


def _lose(connection: Connection, items: Sequence[int]) -> list[int]:
    lost = connection.execute(LOSE, {"oldest_us": items[-1]}).scalars().all()
    if lost:
        rows = [_lost_cost(row) for row in connection.execute(LOST_COSTS, {"ids": lost})]
        connection.execute(delete(run_cost).where(run_cost.c.run_id.in_(lost), run_cost.c.worker == ""))
        PUT_COSTS.execute(connection, [COST_VALUES(row) for row in rows])
    return [len(lost)] * len(items)


def _lost_cost(row: Row[Any]) -> RunCostRow:
    """Return the row for the part of a lost run's cost that no other row contains.

    Its open holds are charged in full. Without a key, there are no holds, and the cost of the open call is unknown.
    """
    cost = (row.cost or 0) + int(row.held or 0) - int(row.recorded or 0)
    is_unknown = int(row.key_id is None or row.cost is None)
    return RunCostRow(
        row.id,
        "",
        "step",
        row.made_us // DAY_US,
        row.key_id,
        row.team_id,
        row.model,
        calls=is_unknown,
        cost=min(max(cost, 0), MAX_PICO),
        unknown_costs=is_unknown,
    )


def _take(connection: Connection, items: Sequence[TakeOver]) -> list[list[str]]:
    connection.execute(TAKE, {"taker": items[-1].owner, "most": items[-1].limit})
    ids = list(connection.execute(MINE, {"taker": items[-1].owner}).scalars())
    return [ids] * len(items)


def _leave(name: str, counted: int) -> Operation[str, None]:
    """Return the operation that gives up the ownership of a run, so that another replica can take the run over.
    `counted` is the change of its `takes`.
    """
    leaves = update(run).values(owner="", takes=run.c.takes + counted)

    def leave(connection: Connection, ids: Sequence[str]) -> list[None]:
        connection.execute(leaves.where(run.c.id.in_(ids), run.c.ended_us.is_(None)))
        return [None] * len(ids)

    return Operation(name, leave)


WRITE: Operation[RunWrite, Written] = Operation("run", write_runs)
"""Operation that writes a run and its events."""


def _mark(name: str, column: str) -> Operation[str, bool]:
    """Return the operation that sets a column of a run to the current time. The owner of the run polls the column."""
    marks = update(run).values({column: func.coalesce(run.c[column], NOW_US)}).returning(run.c.id)

    def mark(connection: Connection, ids: Sequence[str]) -> list[bool]:
        running = marks.where(run.c.id.in_(ids), run.c.ended_us.is_(None))
        marked = set(connection.execute(running).scalars())
        return [id in marked for id in ids]

    return Operation(name, mark)


CANCEL_RUN = _mark("cancellation of a run", "cancel_us")
"""Operation that requests the owner of a run to cancel it. It returns False if the run has ended or is not stored."""
WATCH_RUN = _mark("watch of a run", "watch_us")
"""Asks a run's owner to write its answer while it is streamed. False if it has ended or is not stored."""
LOSE_DEAD: Operation[int, int] = Operation("sweep of runs", _lose)
"""Operation that marks runs of dead replicas as lost. It returns their number.

A kept run is marked only if it started before the given time, or was taken over `MOST_TAKES` times.
"""
TAKE_OVER: Operation[TakeOver, list[str]] = Operation("takeover of runs", _take)
"""Takes dead replicas' kept runs, and returns all active kept ones that this replica owns."""
LEAVE_RUN = _leave("release of a run", 0)
"""Operation for a run that this replica cannot continue. After a few attempts, the run is marked as lost."""
DEFER_RUN = _leave("deferral of a run", -1)
"""Operation for a run that this replica cannot continue yet. The attempt does not count."""
