"""What is removed from the store with time: first the texts of runs, later their numbers. Never the ledger.

One step removes a bounded number of rows, so that nobody waits for it long.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from serving.database.writer import Operation, PostgresConnection
from serving.runs.rows import now_us
from serving.settings.sections import StoreSettings

DAY_US = 86_400_000_000
EVENTS_US = 3_600_000_000
"""The events of a run whose record is complete are kept so long, for those who follow it."""
STEP = 500
"""Runs, or rows of events, that one step removes."""
OLD_CONTENT = """SELECT id FROM run WHERE body_bytes > 0 AND made_us < {0} AND ended_us IS NOT NULL ORDER BY made_us LIMIT {1}"""
MUCH_CONTENT = """SELECT id FROM (SELECT id, sum(body_bytes) OVER (PARTITION BY team_id, CASE WHEN team_id IS NULL THEN key_id END
    ORDER BY made_us DESC, id DESC) AS room FROM run WHERE body_bytes > 0) AS kept WHERE room > {0} LIMIT {1}"""
OLD_RUNS = "SELECT id FROM run WHERE made_us < {0} AND ended_us IS NOT NULL ORDER BY made_us LIMIT {1}"
OLD_CLAIMS = "DELETE FROM idempotency WHERE drop_us < {0}"
OLD_ANSWERS = "DELETE FROM cached_answer WHERE drop_us < {0}"
OLD_EVENTS = """DELETE FROM run_event WHERE (run_id, first_seq) IN (SELECT e.run_id, e.first_seq FROM run_event e LEFT JOIN run r ON r.id = e.run_id
    WHERE (e.at_us < {0} AND r.body_bytes > 0) OR (e.at_us < {1} AND (r.id IS NULL OR r.ended_us IS NOT NULL)) ORDER BY e.at_us LIMIT {2})"""
"""Of runs with a body after a while; where the events are all there is, as of a run that was lost, when
content goes.
"""


@dataclass(frozen=True, slots=True)
class Retention:
    """From when on, in microseconds since 1970, what is kept.

    Args:
        content_us: texts.
        numbers_us: anything.
        events_us: events of runs whose record is complete.
        bytes_per_team: of texts.
    """

    content_us: int
    numbers_us: int
    events_us: int
    bytes_per_team: int | None

    @classmethod
    def of(cls, settings: StoreSettings, at_us: int | None = None) -> Self:
        """What `settings` keep at a time."""
        at_us = now_us() if at_us is None else at_us

        def since(days: float | None) -> int:
            return 0 if days is None else max(0, at_us - int(days * DAY_US))

        numbers_us = since(settings.numbers_days)
        return cls(
            max(since(settings.content_days), numbers_us),
            numbers_us,
            at_us - EVENTS_US,
            settings.content_bytes_per_team,
        )

    @property
    def of_content(self) -> list[tuple[str, int]]:
        """Which runs lose their texts: queries, each with its bound."""
        by_size = [] if self.bytes_per_team is None else [(MUCH_CONTENT, self.bytes_per_team)]
        return [(OLD_CONTENT, self.content_us), *by_size]


async def _remove(connection: PostgresConnection, items: Sequence[Retention]) -> list[int]:
    removed = 0
    async with connection.transaction():
        for query, bound in items[-1].of_content:
            ids = [row["id"] for row in await connection.fetch(query.format("$1", "$2"), bound, STEP)]
            await connection.execute(
                "UPDATE run SET body = NULL, body_bytes = 0 WHERE id = ANY ($1::text[])", ids
            )
            await connection.execute("DELETE FROM run_event WHERE run_id = ANY ($1::text[])", ids)
            removed += len(ids)
        ids = [
            row["id"]
            for row in await connection.fetch(OLD_RUNS.format("$1", "$2"), items[-1].numbers_us, STEP)
        ]
        await connection.execute("DELETE FROM run WHERE id = ANY ($1::text[])", ids)
        await connection.execute("DELETE FROM run_event WHERE run_id = ANY ($1::text[])", ids)
        await connection.execute(OLD_CLAIMS.format("$1"), now_us())
        await connection.execute(OLD_ANSWERS.format("$1"), now_us())
        bounds = (items[-1].events_us, items[-1].content_us, STEP)
        status = await connection.execute(OLD_EVENTS.format("$1", "$2", "$3"), *bounds)
    return [removed + len(ids) + int(status.rpartition(" ")[2])] * len(items)


def _remove_sqlite(connection: sqlite3.Connection, items: Sequence[Retention]) -> list[int]:
    removed = 0
    for query, bound in items[-1].of_content:
        ids = connection.execute(query.format("?", "?"), (bound, STEP)).fetchall()
        connection.executemany("UPDATE run SET body = NULL, body_bytes = 0 WHERE id = ?", ids)
        connection.executemany("DELETE FROM run_event WHERE run_id = ?", ids)
        removed += len(ids)
    ids = connection.execute(OLD_RUNS.format("?", "?"), (items[-1].numbers_us, STEP)).fetchall()
    connection.executemany("DELETE FROM run WHERE id = ?", ids)
    connection.executemany("DELETE FROM run_event WHERE run_id = ?", ids)
    connection.execute(OLD_CLAIMS.format("?"), (now_us(),))
    connection.execute(OLD_ANSWERS.format("?"), (now_us(),))
    bounds = (items[-1].events_us, items[-1].content_us, STEP)
    old = connection.execute(OLD_EVENTS.format("?", "?", "?"), bounds).rowcount
    return [removed + len(ids) + old] * len(items)


REMOVE: Operation[Retention, int] = Operation("removal of old runs", _remove, _remove_sqlite)
"""Remove a step of what is not kept any more; gives how many rows it was."""
