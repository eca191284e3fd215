"""Storage of runs that wait for tool results.

A suspended run is stored completely and resumed once. It is the only data that is stored without redaction,
because providers check their own turns byte by byte when they are sent back. The row is deleted when the run
is resumed, cancelled or expires.
"""

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from serving.database.writer import Operation, PostgresConnection
from serving.store.rows import CLOCK, now_us
from serving.store.statements import RunWrite, Written, write_runs, write_runs_sqlite
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


PUT = {
    "postgresql": """INSERT INTO suspended_run (run_id, drop_us, seq, body) VALUES ($1, $2, $3, $4)
ON CONFLICT (run_id) DO UPDATE SET drop_us = excluded.drop_us, seq = excluded.seq, body = excluded.body""",
    "sqlite": """INSERT INTO suspended_run (run_id, drop_us, seq, body) VALUES (?, ?, ?, ?)
ON CONFLICT (run_id) DO UPDATE SET drop_us = excluded.drop_us, seq = excluded.seq, body = excluded.body""",
}
TAKE = {
    "postgresql": "DELETE FROM suspended_run WHERE run_id = $1 RETURNING seq, body",
    "sqlite": "DELETE FROM suspended_run WHERE run_id = ? RETURNING seq, body",
}
OWN = {
    "postgresql": "UPDATE run SET owner = $2, status = 'running', kept = 1, cancel_us = NULL WHERE id = $1",
    "sqlite": "UPDATE run SET owner = ?2, status = 'running', kept = 1, cancel_us = NULL WHERE id = ?1",
}
END = "UPDATE run SET status = '{status}', ended_us = {now} WHERE status = 'waiting' AND id IN ({ids})"
LATE = "DELETE FROM suspended_run WHERE drop_us < {now} RETURNING run_id"
CROWDED = """DELETE FROM suspended_run WHERE run_id IN (SELECT run_id FROM (SELECT s.run_id, sum(length(s.body))
    OVER (PARTITION BY coalesce(r.team_id, r.key_id) ORDER BY s.drop_us DESC, s.run_id) AS used
    FROM suspended_run s JOIN run r ON r.id = s.run_id) AS waiting WHERE used > {most}) RETURNING run_id"""
"""Deletes the oldest suspended runs of each team (or key without a team) that exceeds its limit of bytes."""
DROP = {
    "postgresql": "DELETE FROM suspended_run WHERE run_id = ANY ($1::text[]) RETURNING run_id",
    "sqlite": "DELETE FROM suspended_run WHERE run_id = ? RETURNING run_id",
}
SECRETS = """SELECT secret FROM (SELECT made_us, secret FROM signing_secret ORDER BY made_us DESC LIMIT {limit}) AS newest
ORDER BY made_us > {now}, made_us DESC"""
FIRST_SECRET = {
    "postgresql": "INSERT INTO signing_secret (name, made_us, secret) VALUES ('first', $1, $2) ON CONFLICT DO NOTHING",
    "sqlite": "INSERT INTO signing_secret (name, made_us, secret) VALUES ('first', ?, ?) ON CONFLICT DO NOTHING",
}


async def _suspend(connection: PostgresConnection, items: Sequence[SuspendWrite]) -> list[Written]:
    async with connection.transaction():
        written = await write_runs(connection, [item.write for item in items])
        for item, each in zip(items, written, strict=True):
            if each.is_owner:
                await connection.execute(PUT["postgresql"], *astuple(item.row))
    return written


def _suspend_sqlite(connection: sqlite3.Connection, items: Sequence[SuspendWrite]) -> list[Written]:
    written = write_runs_sqlite(connection, [item.write for item in items])
    rows = [astuple(item.row) for item, each in zip(items, written, strict=True) if each.is_owner]
    connection.executemany(PUT["sqlite"], rows)
    return written


async def _take(connection: PostgresConnection, items: Sequence[Take]) -> list[Taken | None]:
    taken: list[Taken | None] = [None] * len(items)
    async with connection.transaction():
        for place in sorted(range(len(items)), key=lambda n: items[n].run_id):  # no deadlock
            rows = await connection.fetch(TAKE["postgresql"], items[place].run_id)
            if rows:  # only the first of several requests for one run gets it
                await connection.execute(OWN["postgresql"], items[place].run_id, items[place].owner)
                taken[place] = Taken(rows[0]["seq"], bytes(rows[0]["body"]))
    return taken


def _take_sqlite(connection: sqlite3.Connection, items: Sequence[Take]) -> list[Taken | None]:
    taken: list[Taken | None] = []
    for each in items:
        row = connection.execute(TAKE["sqlite"], (each.run_id,)).fetchone()
        if row is not None:
            connection.execute(OWN["sqlite"], (each.run_id, each.owner))
        taken.append(None if row is None else Taken(*row))
    return taken


async def _expire(connection: PostgresConnection, items: Sequence[int | None]) -> list[list[str]]:
    async with connection.transaction():
        rows = [row for query in _ended(items[-1], CLOCK) for row in await connection.fetch(query)]
        ids = [row["run_id"] for row in rows]
        await connection.execute(
            END.format(status="expired", now=CLOCK, ids="SELECT unnest($1::text[])"), ids
        )
    return [ids, *([] for _ in items[1:])]


def _expire_sqlite(connection: sqlite3.Connection, items: Sequence[int | None]) -> list[list[str]]:
    ids = [id for query in _ended(items[-1], now_us()) for (id,) in connection.execute(query).fetchall()]
    connection.executemany(END.format(status="expired", now=now_us(), ids="?"), [(id,) for id in ids])
    return [ids, *([] for _ in items[1:])]


def _ended(most_bytes: int | None, now: object) -> list[str]:
    """Return the statements that delete expired runs and those above the limit of bytes."""
    crowded = [CROWDED.format(most=most_bytes)] if most_bytes is not None else []
    return [LATE.format(now=now), *crowded]


async def _drop(connection: PostgresConnection, items: Sequence[str]) -> list[bool]:
    async with connection.transaction():
        rows = await connection.fetch(DROP["postgresql"], list(items))
        ids = [row["run_id"] for row in rows]
        await connection.execute(
            END.format(status="cancelled", now=CLOCK, ids="SELECT unnest($1::text[])"), ids
        )
    return [id in ids for id in items]


def _drop_sqlite(connection: sqlite3.Connection, items: Sequence[str]) -> list[bool]:
    dropped = [bool(connection.execute(DROP["sqlite"], (id,)).fetchall()) for id in items]
    ended = [(id,) for id, is_dropped in zip(items, dropped, strict=True) if is_dropped]
    connection.executemany(END.format(status="cancelled", now=now_us(), ids="?"), ended)
    return dropped


async def _secrets(connection: PostgresConnection, items: Sequence[None]) -> list[list[bytes]]:
    query = SECRETS.format(limit=MOST_SECRETS, now=CLOCK)
    rows = await connection.fetch(query)
    if not rows:
        await connection.execute(FIRST_SECRET["postgresql"], now_us(), secrets.token_bytes(SECRET_BYTES))
        rows = await connection.fetch(query)
    return [[bytes(row["secret"]) for row in rows]] * len(items)


def _secrets_sqlite(connection: sqlite3.Connection, items: Sequence[None]) -> list[list[bytes]]:
    query = SECRETS.format(limit=MOST_SECRETS, now=now_us())
    rows = connection.execute(query).fetchall()
    if not rows:
        connection.execute(FIRST_SECRET["sqlite"], (now_us(), secrets.token_bytes(SECRET_BYTES)))
        rows = connection.execute(query).fetchall()
    return [[row[0] for row in rows]] * len(items)


SUSPEND: Operation[SuspendWrite, Written] = Operation("suspended run", _suspend, _suspend_sqlite)
"""Suspend a run until it gets tool results."""
TAKE_SUSPENDED: Operation[Take, Taken | None] = Operation("resume of a run", _take, _take_sqlite)
"""Resume a suspended run and become its owner. Returns None if it does not wait. One of several requests gets
it.
"""
EXPIRE: Operation[int | None, list[str]] = Operation("expiry of suspended runs", _expire, _expire_sqlite)
"""End expired runs, and the oldest runs of each team above the limit of bytes (None: no limit). Returns their
ids, each to one caller.
"""
DROP_SUSPENDED: Operation[str, bool] = Operation("cancellation of a suspended run", _drop, _drop_sqlite)
"""Cancel a suspended run. Returns False if no run of that id waits."""
READ_SECRETS: Operation[None, list[bytes]] = Operation("secrets of tool call ids", _secrets, _secrets_sqlite)
"""Read the signing secrets of tool call ids, the one that signs first. Creates the first secret if there is
none.
"""
