"""Storage of runs that wait for tool results.

A suspended run is stored completely and resumed once. It is the only data that is stored without redaction,
because providers check their own turns byte by byte when they are sent back. The row is deleted when the run
is resumed, cancelled or expires.
"""

import secrets
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from sqlalchemy import Connection, bindparam, delete, func, select, update

from serving.database.clock import NOW_US, now_us
from serving.database.inserts import RowInsert
from serving.database.schema import run, signing_secret, suspended_run
from serving.database.writer import Operation
from serving.store.statements import RunWrite, Written, write_runs
from serving.store.tool_ids import SECRET_BYTES

MOST_SECRETS = 2
"""Number of valid secrets: the one that signs and the previous one."""
SECRETS_S = 30.0
"""Maximum age of a replica's cached secrets."""
ROTATE_S = 2 * SECRETS_S
"""Delay before a new secret signs. By then, every replica accepts it."""


@dataclass(frozen=True, slots=True)
class SuspendedRow:
    """Row of the table `suspended_run`. Fields are columns."""

    run_id: str
    drop_us: int
    seq: int
    """Number of the newest item of the run."""
    body: bytes


@dataclass(frozen=True, slots=True)
class SuspendWrite:
    """Write of a run that is suspended: its row and events as for every run, and its row with the complete
    records.
    """

    write: RunWrite
    row: SuspendedRow


@dataclass(frozen=True, slots=True)
class Take:
    """Request of the replica `owner` to resume a run."""

    run_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Resumed run: the number of its newest item, and its packed records."""

    seq: int
    body: bytes


WAITING = suspended_run.c
PUT = RowInsert(suspended_run, ["run_id", "drop_us", "seq", "body"], update=["drop_us", "seq", "body"])
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
"""Deletes the oldest suspended runs of each team (or key without a team) that exceeds its limit of bytes."""
_newest = select(signing_secret).order_by(signing_secret.c.made_us.desc()).limit(MOST_SECRETS).subquery()
SECRETS = select(_newest.c.secret).order_by(_newest.c.made_us > NOW_US, _newest.c.made_us.desc())
FIRST_SECRET = RowInsert(signing_secret, ["name", "made_us", "secret"])


def _suspend(connection: Connection, items: Sequence[SuspendWrite]) -> list[Written]:
    written = write_runs(connection, [item.write for item in items])
    rows = [astuple(item.row) for item, each in zip(items, written, strict=True) if each.is_owner]
    PUT.execute(connection, rows)
    return written


def _take(connection: Connection, items: Sequence[Take]) -> list[Taken | None]:
    ids = sorted({item.run_id for item in items})
    rows = connection.execute(
        delete(suspended_run)
        .where(WAITING.run_id.in_(ids))
        .returning(WAITING.run_id, WAITING.seq, WAITING.body)
    )
    waiting = {row.run_id: Taken(row.seq, row.body) for row in rows}
    taken = [waiting.pop(item.run_id, None) for item in items]  # the first of several requests gets it
    owners = [
        {"of_id": item.run_id, "taker": item.owner}
        for item, each in zip(items, taken, strict=True)
        if each is not None
    ]
    if owners:
        connection.execute(OWN, owners)
    return taken


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


def _secrets(connection: Connection, items: Sequence[None]) -> list[list[bytes]]:
    newest = list(connection.execute(SECRETS).scalars())
    if not newest:
        FIRST_SECRET.execute(connection, [("first", now_us(), secrets.token_bytes(SECRET_BYTES))])
        newest = list(connection.execute(SECRETS).scalars())
    return [newest] * len(items)


SUSPEND: Operation[SuspendWrite, Written] = Operation("suspended run", _suspend)
"""Suspend a run until it gets tool results."""
TAKE_SUSPENDED: Operation[Take, Taken | None] = Operation("resume of a run", _take)
"""Resume a suspended run and become its owner. Returns None if it does not wait. One of several requests gets
it.
"""
EXPIRE: Operation[int | None, list[str]] = Operation("expiry of suspended runs", _expire)
"""End expired runs, and the oldest runs of each team above the limit of bytes (None: no limit). Returns their
ids, each to one caller.
"""
DROP_SUSPENDED: Operation[str, bool] = Operation("cancellation of a suspended run", _drop)
"""Cancel a suspended run. Returns False if no run of that id waits."""
READ_SECRETS: Operation[None, list[bytes]] = Operation("secrets of tool call ids", _secrets)
"""Read the signing secrets of tool call ids, the one that signs first. Creates the first secret if there is
none.
"""
