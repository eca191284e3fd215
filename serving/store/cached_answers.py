"""Storage of the answer cache: maps requests to the runs that answered them. `answer_cache.py` decides what
is cached.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from serving.database.writer import Operation, PostgresConnection


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """Cached answer of a request.

    Args:
        owner: id of the team, or of the key if it has no team.
        asked: hash of the request.
        run_id: id of the run that answered.
        drop_us: expiry time in microseconds since 1970.
    """

    owner: str
    asked: str
    run_id: str
    drop_us: int


KEEP = {
    "postgresql": """INSERT INTO cached_answer (owner, asked, run_id, drop_us) VALUES ($1, $2, $3, $4)
ON CONFLICT (owner, asked) DO UPDATE SET run_id = excluded.run_id, drop_us = excluded.drop_us""",
    "sqlite": """INSERT INTO cached_answer (owner, asked, run_id, drop_us) VALUES (?, ?, ?, ?)
ON CONFLICT (owner, asked) DO UPDATE SET run_id = excluded.run_id, drop_us = excluded.drop_us""",
}


async def _keep(connection: PostgresConnection, answers: Sequence[CachedAnswer]) -> list[None]:
    newest = {(each.owner, each.asked): each for each in answers}
    async with connection.transaction():
        for _, each in sorted(newest.items()):  # no deadlock
            await connection.execute(KEEP["postgresql"], each.owner, each.asked, each.run_id, each.drop_us)
    return [None] * len(answers)


def _keep_sqlite(connection: sqlite3.Connection, answers: Sequence[CachedAnswer]) -> list[None]:
    connection.executemany(
        KEEP["sqlite"], [(each.owner, each.asked, each.run_id, each.drop_us) for each in answers]
    )
    return [None] * len(answers)


KEEP_ANSWER: Operation[CachedAnswer, None] = Operation("cache of answers", _keep, _keep_sqlite)
