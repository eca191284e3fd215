"""Retention: removes the texts of runs first and their numbers later. The ledger is never removed.

Each step removes a bounded number of rows, so that other writers do not wait long.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from serving.database.writer import Operation, PostgresConnection
from serving.settings.sections import StoreSettings
from serving.store.rows import now_us

DAY_US = 86_400_000_000
EVENTS_US = 3_600_000_000
"""Retention of the events of a run with a complete record: one hour, for clients that follow the run."""
STEP = 500
"""Maximum number of runs or rows per step and statement."""
OLD_CONTENT = """SELECT id FROM run WHERE body_bytes > 0 AND made_us < {0} AND ended_us IS NOT NULL ORDER BY made_us LIMIT {1}"""
MUCH_CONTENT = """SELECT id FROM (SELECT id, sum(body_bytes) OVER (PARTITION BY team_id, CASE WHEN team_id IS NULL THEN key_id END
    ORDER BY made_us DESC, id DESC) AS room FROM run WHERE body_bytes > 0) AS kept WHERE room > {0} LIMIT {1}"""
REMOVE_CONTENT = (
    "UPDATE run SET body = NULL, body_bytes = 0 WHERE id {0}",
    "DELETE FROM run_event WHERE run_id {0}",
    "DELETE FROM run_text WHERE run_id {0}",
    "UPDATE run_feedback SET comment = '', expected = '' WHERE run_id {0}",
)
REMOVE_RUN = (
    "DELETE FROM run WHERE id {0}",
    "DELETE FROM run_event WHERE run_id {0}",
    "DELETE FROM run_text WHERE run_id {0}",
    "DELETE FROM run_worker WHERE run_id {0}",
    "DELETE FROM run_feedback WHERE run_id {0}",
)
ACCOUNT_CONTENT = """SELECT id FROM run WHERE {column} = '{id}' AND made_us < {{0}} AND ended_us IS NOT NULL
    AND (body_bytes > 0 OR EXISTS (SELECT 1 FROM run_event e WHERE e.run_id = run.id)) ORDER BY made_us LIMIT {{1}}"""
"""Selects runs of one team or key whose texts are removed."""
OLD_RUNS = "SELECT id FROM run WHERE made_us < {0} AND ended_us IS NOT NULL ORDER BY made_us LIMIT {1}"
OLDEST = "DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {of} {time} < {{0}} {but} ORDER BY {time} LIMIT {step})"
"""Deletes the oldest rows of a table, by one of its columns."""


def oldest(table: str, key: str, time: str, of: str = "", but: str = "", step: int = STEP) -> str:
    """Return the statement that deletes up to `step` of the oldest rows of a table.

    Args:
        table: name of the table.
        key: columns of the primary key.
        time: column with the time of a row.
        of: condition before the one on `time`, with a trailing AND.
        but: condition after it, with a leading AND.
        step: maximum number of rows.
    """
    return OLDEST.format(table=table, key=key, time=time, of=of, but=but, step=step)


FILES_STEP = 10
"""Maximum number of files per step. It is low because files may be large."""
UNDER_WAY = "AND status NOT IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
DROPPED = (
    oldest("idempotency", "account, name", "drop_us"),
    oldest("cached_answer", "owner, asked", "drop_us"),
    oldest("stored_file", "id", "drop_us", step=FILES_STEP),
    oldest("batch", "id", "drop_us", but=UNDER_WAY),
)
"""Deletions from tables whose rows have an expiry time."""
OLD_ITEMS = """SELECT i.conversation_id, i.number, i.n_bytes FROM conversation_item i JOIN conversation c ON c.id = i.conversation_id
    WHERE {of} i.made_us < {{0}} ORDER BY i.made_us, i.conversation_id, i.number LIMIT {step}"""
OF_CONVERSATIONS = (
    """UPDATE conversation SET n_bytes = n_bytes - (SELECT sum(old.n_bytes) FROM ({items}) AS old
    WHERE old.conversation_id = conversation.id) WHERE id IN (SELECT old.conversation_id FROM ({items}) AS old)""",
    """DELETE FROM conversation_item WHERE (conversation_id, number) IN
    (SELECT old.conversation_id, old.number FROM ({items}) AS old)""",
    """DELETE FROM conversation WHERE id IN (SELECT c.id FROM conversation c WHERE {of} c.changed_us < {{0}}
    AND NOT EXISTS (SELECT 1 FROM conversation_item i WHERE i.conversation_id = c.id) ORDER BY c.changed_us LIMIT {step})""",
)
"""Removes old items of conversations, and conversations without items."""
OLD_EVENTS = """DELETE FROM run_event WHERE (run_id, first_seq) IN (SELECT e.run_id, e.first_seq FROM run_event e LEFT JOIN run r ON r.id = e.run_id
    WHERE (e.at_us < {0} AND r.body_bytes > 0) OR (e.at_us < {1} AND (r.id IS NULL OR r.ended_us IS NOT NULL)) ORDER BY e.at_us LIMIT {2})"""
"""Deletes old events. Runs with a body lose them after `EVENTS_US`. The events of runs without a body, such as lost
ones, are their only content and are deleted with the texts.
"""


@dataclass(frozen=True, slots=True)
class ContentDays:
    """Retention of the texts of a team or a key.

    Args:
        column: column of `run` with its id: `team_id` or `key_id`.
        id: id of the team or key. It is generated here and safe to insert into a statement.
        days: retention in days.
    """

    column: str
    id: str
    days: float

    def __post_init__(self) -> None:
        assert self.id.isidentifier(), "ids are made by `Directory`"


@dataclass(frozen=True, slots=True)
class Retention:
    """Bounds of one removal. Rows with a time (microseconds since 1970) before a bound are removed.

    Args:
        content_us: bound of texts.
        numbers_us: bound of runs with all their data.
        events_us: bound of events of runs with a complete record.
        bytes_per_team: maximum total bytes of texts per team, or None for no limit.
        of_accounts: bounds of texts of teams and keys: column, id, and bound.
    """

    content_us: int
    numbers_us: int
    events_us: int
    bytes_per_team: int | None
    of_accounts: tuple[tuple[str, str, int], ...] = ()

    @classmethod
    def of(cls, settings: StoreSettings, at_us: int | None = None, policies: Iterable[ContentDays] = ()) -> Self:  # fmt: skip
        """Return the bounds at `at_us`, by default now. Policies of teams and keys may shorten the settings."""
        at_us = now_us() if at_us is None else at_us

        def since(days: float | None) -> int:
            return 0 if days is None else int(max(0.0, at_us - days * DAY_US))

        numbers_us = since(settings.numbers_days)
        return cls(
            max(since(settings.content_days), numbers_us),
            numbers_us,
            at_us - EVENTS_US,
            settings.content_bytes_per_team,
            tuple((each.column, each.id, since(each.days)) for each in policies),
        )

    @property
    def of_rows(self) -> list[tuple[str, int]]:
        """Statements that remove data other than runs, each with its bound."""
        files = [
            (oldest("stored_file", "id", "made_us", of=f"{column} = '{id}' AND", step=FILES_STEP), bound)
            for column, id, bound in self.of_accounts
        ]
        at_us = now_us()
        return [*((statement, at_us) for statement in DROPPED), *files, *self._of_conversations]

    @property
    def _of_conversations(self) -> list[tuple[str, int]]:
        bounds = [("", self.content_us)]
        bounds += [(f"c.{column} = '{id}' AND", bound) for column, id, bound in self.of_accounts]
        return [
            (statement.format(of=of, items=OLD_ITEMS.format(of=of, step=STEP), step=STEP), bound)
            for of, bound in bounds
            for statement in OF_CONVERSATIONS
        ]

    @property
    def of_content(self) -> list[tuple[str, int]]:
        """Queries for runs whose texts are removed, each with its bound."""
        by_size = [] if self.bytes_per_team is None else [(MUCH_CONTENT, self.bytes_per_team)]
        by_account = [
            (ACCOUNT_CONTENT.format(column=column, id=id), bound) for column, id, bound in self.of_accounts
        ]
        return [(OLD_CONTENT, self.content_us), *by_size, *by_account]


async def _remove(connection: PostgresConnection, items: Sequence[Retention]) -> list[int]:
    removed = 0
    async with connection.transaction():
        for query, bound in items[-1].of_content:
            ids = [row["id"] for row in await connection.fetch(query.format("$1", "$2"), bound, STEP)]
            for statement in REMOVE_CONTENT:
                await connection.execute(statement.format("= ANY ($1::text[])"), ids)
            removed += len(ids)
        ids = [
            row["id"]
            for row in await connection.fetch(OLD_RUNS.format("$1", "$2"), items[-1].numbers_us, STEP)
        ]
        for statement in REMOVE_RUN:
            await connection.execute(statement.format("= ANY ($1::text[])"), ids)
        for statement, bound in items[-1].of_rows:
            status = await connection.execute(statement.format("$1"), bound)
            removed += int(status.rpartition(" ")[2]) if status.startswith("DELETE") else 0
        bounds = (items[-1].events_us, items[-1].content_us, STEP)
        status = await connection.execute(OLD_EVENTS.format("$1", "$2", "$3"), *bounds)
    return [removed + len(ids) + int(status.rpartition(" ")[2])] * len(items)


def _remove_sqlite(connection: sqlite3.Connection, items: Sequence[Retention]) -> list[int]:
    removed = 0
    for query, bound in items[-1].of_content:
        ids = connection.execute(query.format("?", "?"), (bound, STEP)).fetchall()
        for statement in REMOVE_CONTENT:
            connection.executemany(statement.format("= ?"), ids)
        removed += len(ids)
    ids = connection.execute(OLD_RUNS.format("?", "?"), (items[-1].numbers_us, STEP)).fetchall()
    for statement in REMOVE_RUN:
        connection.executemany(statement.format("= ?"), ids)
    for statement, bound in items[-1].of_rows:
        n = connection.execute(statement.format("?1"), (bound,)).rowcount
        removed += n if statement.startswith("DELETE") else 0
    bounds = (items[-1].events_us, items[-1].content_us, STEP)
    old = connection.execute(OLD_EVENTS.format("?", "?", "?"), bounds).rowcount
    return [removed + len(ids) + old] * len(items)


REMOVE: Operation[Retention, int] = Operation("removal of old runs", _remove, _remove_sqlite)
"""Remove one step of expired data. Returns the number of rows."""


async def _remove_texts(connection: PostgresConnection, items: Sequence[str]) -> list[None]:
    async with connection.transaction():
        for statement in REMOVE_CONTENT:
            await connection.execute(statement.format("= ANY ($1::text[])"), list(items))
    return [None] * len(items)


def _remove_texts_sqlite(connection: sqlite3.Connection, items: Sequence[str]) -> list[None]:
    for statement in REMOVE_CONTENT:
        connection.executemany(statement.format("= ?"), [(id,) for id in items])
    return [None] * len(items)


REMOVE_TEXTS: Operation[str, None] = Operation("removal of texts", _remove_texts, _remove_texts_sqlite)
"""Remove the texts of a run that has ended. Its numbers remain."""
