"""Storage of runs that wait for tool results.

A suspended run is stored completely and can be resumed once. Its `body` is the only data that is stored without
redaction, because providers check byte by byte that their own messages come back unchanged. The row is
deleted when the run is resumed, is cancelled or expires.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from sqlalchemy import Connection, bindparam, delete, func, select, update

from serving.database.clock import NOW_US
from serving.database.inserts import RowInsert
from serving.database.schema import run, suspended_run
from serving.database.writer import Operation
from serving.store.statements import RunWrite, Written, write_runs


@dataclass(frozen=True, slots=True)
class SuspendedRow:
    """Row of the table `suspended_run`. Its fields are the columns."""

    run_id: str
    drop_us: int
    seq: int
    """Number of the run's newest event."""
    body: bytes
    question: str


@dataclass(frozen=True, slots=True)
class SuspendWrite:
    """Write of a run that is suspended: its state and events, and the row with its complete records."""

    write: RunWrite
    row: SuspendedRow


@dataclass(frozen=True, slots=True)
class Take:
    """Request of the replica `owner` to resume a run."""

    run_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """Resumed run: the number of its newest event, and its packed records."""

    seq: int
    body: bytes


WAITING = suspended_run.c
COLUMNS = ["drop_us", "seq", "body", "question"]
PUT = RowInsert(suspended_run, ["run_id", *COLUMNS], update=COLUMNS)
OWN = (
    update(run)
    .where(run.c.id == bindparam("of_id"))
    .values(owner=bindparam("taker"), status="running", kept=1, cancel_us=None)
)
LATE = delete(suspended_run).where(WAITING.drop_us < NOW_US).returning(WAITING.run_id)
_used = func.sum(func.length(WAITING.body)).over(
    partition_by=func.coalesce(run.c.team_id, run.c.key_id), order_by=(WAITING.drop_us.desc(), WAITING.run_id)
)
_by_team = select(WAITING.run_id, _used.label("used")).join(run, run.c.id == WAITING.run_id).subquery()
CROWDED = (
    delete(suspended_run)
    .where(WAITING.run_id.in_(select(_by_team.c.run_id).where(_by_team.c.used > bindparam("most_bytes"))))
    .returning(WAITING.run_id)
)
"""Statement that deletes the oldest suspended runs of each team, or key without a team, that exceeds its limit of bytes."""


def _suspend(connection: Connection, items: Sequence[SuspendWrite]) -> list[Written]:
    written = write_runs(connection, [item.write for item in items])
    rows = [astuple(item.row) for item, each in zip(items, written, strict=True) if each.is_owner]
    PUT.execute(connection, rows)
    return written


def _take(connection: Connection, items: Sequence[Take]) -> list[ResumedRun | None]:
    ids = sorted({item.run_id for item in items})
    rows = connection.execute(
        delete(suspended_run)
        .where(WAITING.run_id.in_(ids))
        .returning(WAITING.run_id, WAITING.seq, WAITING.body)
    )
    waiting = {row.run_id: ResumedRun(row.seq, row.body) for row in rows}
    runs = [waiting.pop(item.run_id, None) for item in items]  # the first of several requests gets it
    owners = [
        {"of_id": item.run_id, "taker": item.owner}
        for item, each in zip(items, runs, strict=True)
        if each is not None
    ]
    if owners:
        connection.execute(OWN, owners)
    return runs


def _expire(connection: Connection, items: Sequence[int | None]) -> list[list[str]]:
    ids = list(connection.execute(LATE).scalars())
    if (most_bytes := items[-1]) is not None:
        ids += connection.execute(CROWDED, {"most_bytes": most_bytes}).scalars()
    _end(connection, ids, "expired")
    return [ids, *([] for _ in items[1:])]


def _drop(connection: Connection, items: Sequence[str]) -> list[bool]:
    dropping = delete(suspended_run).where(WAITING.run_id.in_(items)).returning(WAITING.run_id)
    ids = list(connection.execute(dropping).scalars())
    _end(connection, ids, "cancelled")
    return [id in ids for id in items]


def _end(connection: Connection, ids: Sequence[str], status: str) -> None:
    waits = run.c.id.in_(ids) & (run.c.status == "waiting")
    if ids:
        connection.execute(update(run).where(waits).values(status=status, ended_us=NOW_US))


SUSPEND: Operation[SuspendWrite, Written] = Operation("suspension of a run", _suspend)
"""Operation that suspends a run until it gets tool results."""
TAKE_SUSPENDED: Operation[Take, ResumedRun | None] = Operation("resume of a run", _take)
"""Resumes a suspended run and makes the replica its owner, for only one request. None if it does not wait."""
EXPIRE: Operation[int | None, list[str]] = Operation("expiry of suspended runs", _expire)
"""Ends expired suspended runs, and the oldest of each team beyond the item's limit of bytes, if any. It
returns the ids of the ended runs, each to only one caller.
"""
DROP_SUSPENDED: Operation[str, bool] = Operation("cancellation of a suspended run", _drop)
"""Operation that cancels a suspended run. It returns False if there is no suspended run with this id."""
