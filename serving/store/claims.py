"""Idempotent requests: the first request with a name claims the name for its run, and repeats join that run."""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from serving.database.writer import Operation, PostgresConnection
from serving.store.rows import CLOCK, now_us

KEPT_US = 86_400_000_000
"""Lifetime of a claim: one day."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a request's name.

    Args:
        account: account of the client. Each account has its own names.
        name: name that the client sent, or a digest of it.
        body_hash: hash of the request.
        run_id: id of the run that answers the request.
        owner: replica that starts the run.
    """

    account: str
    name: str
    body_hash: str
    run_id: str
    owner: str


TAKE = {
    "postgresql": """INSERT INTO idempotency (account, name, body_hash, run_id, owner, drop_us) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (account, name) DO UPDATE SET body_hash = excluded.body_hash, run_id = excluded.run_id, owner = excluded.owner,
    drop_us = excluded.drop_us
WHERE idempotency.drop_us < $7""",
    "sqlite": """INSERT INTO idempotency (account, name, body_hash, run_id, owner, drop_us) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (account, name) DO UPDATE SET body_hash = excluded.body_hash, run_id = excluded.run_id, owner = excluded.owner,
    drop_us = excluded.drop_us
WHERE idempotency.drop_us < ?""",
}
COLUMNS = "account, name, body_hash, run_id, owner"
READ = {
    "postgresql": f"SELECT {COLUMNS} FROM idempotency WHERE account = $1 AND name = $2",
    "sqlite": f"SELECT {COLUMNS} FROM idempotency WHERE account = ? AND name = ?",
}
DROP = {
    "postgresql": "DELETE FROM idempotency WHERE account = $1 AND name = $2 AND run_id = $3",
    "sqlite": "DELETE FROM idempotency WHERE account = ? AND name = ? AND run_id = ?",
}
NEVER_BEGUN = """NOT EXISTS (SELECT 1 FROM run WHERE run.id = idempotency.run_id)
    AND NOT EXISTS (SELECT 1 FROM replica a WHERE a.id = idempotency.owner AND a.lease_until_us >= {now})"""
"""Condition: the run is not stored, and the lease of its replica has expired."""


async def _claim(connection: PostgresConnection, claims: Sequence[Claim]) -> list[Claim]:
    at_us = now_us()
    current: list[Claim] = []
    async with connection.transaction():
        for each in sorted(set(claims), key=lambda claim: (claim.account, claim.name)):  # no deadlock
            await connection.execute(TAKE["postgresql"], *astuple(each), at_us + KEPT_US, at_us)
        for each in claims:
            (row,) = await connection.fetch(READ["postgresql"], each.account, each.name)
            current.append(Claim(*row.values()))
    return current


def _claim_sqlite(connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[Claim]:
    at_us = now_us()
    connection.executemany(TAKE["sqlite"], [(*astuple(each), at_us + KEPT_US, at_us) for each in claims])
    return [
        Claim(*connection.execute(READ["sqlite"], (each.account, each.name)).fetchone()) for each in claims
    ]


async def _release(connection: PostgresConnection, claims: Sequence[Claim]) -> list[None]:
    for each in claims:
        await connection.execute(DROP["postgresql"], each.account, each.name, each.run_id)
    return [None] * len(claims)


def _release_sqlite(connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[None]:
    connection.executemany(DROP["sqlite"], [(each.account, each.name, each.run_id) for each in claims])
    return [None] * len(claims)


async def _free(connection: PostgresConnection, claims: Sequence[Claim]) -> list[bool]:
    query = f"{DROP['postgresql']} AND {NEVER_BEGUN.format(now=CLOCK)}"
    free: list[bool] = []
    for each in claims:
        await connection.execute(query, each.account, each.name, each.run_id)
        rows = await connection.fetch(READ["postgresql"], each.account, each.name)
        free.append(all(row["run_id"] != each.run_id for row in rows))
    return free


def _free_sqlite(connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[bool]:
    query = f"{DROP['sqlite']} AND {NEVER_BEGUN.format(now=now_us())}"
    free: list[bool] = []
    for each in claims:
        connection.execute(query, (each.account, each.name, each.run_id))
        rows = connection.execute(READ["sqlite"], (each.account, each.name)).fetchall()
        free.append(all(Claim(*row).run_id != each.run_id for row in rows))
    return free


CLAIM: Operation[Claim, Claim] = Operation("claim of a request", _claim, _claim_sqlite)
"""Claim a name. Returns the claim in force, which may be an earlier one."""
RELEASE_CLAIM: Operation[Claim, None] = Operation(
    "release of a request", _release, _release_sqlite, is_kept=True
)
"""Release a name, because no run was started."""
FREE_CLAIM: Operation[Claim, bool] = Operation("freeing of a request", _free, _free_sqlite)
"""Release the name of a run whose replica ended before it started the run. Returns False if the run has
started or may still start. Returns True also if another replica has released the name.
"""
