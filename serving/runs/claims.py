"""Requests that run once, however often they are sent: the client names one, and the first sending claims the
name for its run.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from serving.database.writer import Operation, PostgresConnection
from serving.runs.rows import CLOCK, now_us

KEPT_US = 86_400_000_000
"""How long a name stays claimed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A name for a request.

    Args:
        account: whose. Names of others are other names.
        name: as the client gave it, or a digest of that.
        body_hash: of what was asked.
        run_id: of the run that answers.
        owner: the replica that begins it.
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
"""Its replica does not live any more and has begun nothing."""


async def _claim(connection: PostgresConnection, claims: Sequence[Claim]) -> list[Claim]:
    at_us = now_us()
    found: list[Claim] = []
    async with connection.transaction():
        for each in sorted(set(claims), key=lambda claim: (claim.account, claim.name)):  # no deadlock
            await connection.execute(TAKE["postgresql"], *astuple(each), at_us + KEPT_US, at_us)
        for each in claims:
            (row,) = await connection.fetch(READ["postgresql"], each.account, each.name)
            found.append(Claim(*row.values()))
    return found


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
        held = await connection.fetch(READ["postgresql"], each.account, each.name)
        free.append(all(row["run_id"] != each.run_id for row in held))
    return free


def _free_sqlite(connection: sqlite3.Connection, claims: Sequence[Claim]) -> list[bool]:
    query = f"{DROP['sqlite']} AND {NEVER_BEGUN.format(now=now_us())}"
    free: list[bool] = []
    for each in claims:
        connection.execute(query, (each.account, each.name, each.run_id))
        held = connection.execute(READ["sqlite"], (each.account, each.name)).fetchall()
        free.append(all(Claim(*row).run_id != each.run_id for row in held))
    return free


CLAIM: Operation[Claim, Claim] = Operation("claim of a request", _claim, _claim_sqlite)
"""Claim a name; gives the claim that holds, which may be an earlier one."""
RELEASE_CLAIM: Operation[Claim, None] = Operation(
    "release of a request", _release, _release_sqlite, is_kept=True
)
"""Give a name back: nothing was run."""
FREE_CLAIM: Operation[Claim, bool] = Operation("freeing of a request", _free, _free_sqlite)
"""Free the name of a run that its replica did not live to begin; False where it may yet begin, or has. True too
where somebody else has freed it.
"""
