"""Write operations on runs for PostgreSQL and SQLite. All are idempotent.

A run belongs to its owner. After another replica has taken it over, writes of the earlier owner are ignored.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from conductor.run.record import RunRecords
from serving.database.writer import Operation, PostgresConnection
from serving.store.rows import CLOCK, EventRow, RunRow, now_us, run_row
from serving.store.run_filter import text_of, workers_of

RUN_COLUMNS = [field.name for field in fields(RunRow)]
EVENT_COLUMNS = [field.name for field in fields(EventRow)]
BYTES = {"numbers", "body"}
NUMBERS = {
    "made_us",
    "ended_us",
    "cost",
    "input_tokens",
    "output_tokens",
    "kept",
    "body_bytes",
    "first_seq",
    "last_seq",
    "at_us",
}
FIXED = {"id", "key_id", "team_id", "model", "owner", "made_us", "trace_id"}
"""Columns that do not change after the first write."""
NEWER = ", ".join(f"{name} = excluded.{name}" for name in RUN_COLUMNS if name not in FIXED)
UPSERT = f"""ON CONFLICT (id) DO UPDATE SET {NEWER} WHERE run.owner = excluded.owner AND (run.ended_us IS NULL OR run.status = 'lost')
    AND NOT (run.status = 'waiting' AND excluded.status = 'running')
RETURNING id, cancel_us, watch_us"""


def _unnest(columns: Sequence[str]) -> str:
    types = ["bytea" if each in BYTES else "bigint" if each in NUMBERS else "text" for each in columns]
    return "unnest({})".format(", ".join(f"${n}::{kind}[]" for n, kind in enumerate(types, 1)))


def _marks(columns: Sequence[str]) -> str:
    return ", ".join("?" * len(columns))


PUT_RUNS = {
    "postgresql": f"INSERT INTO run ({', '.join(RUN_COLUMNS)}) SELECT * FROM {_unnest(RUN_COLUMNS)} {UPSERT}",
    "sqlite": f"INSERT INTO run ({', '.join(RUN_COLUMNS)}) VALUES ({_marks(RUN_COLUMNS)}) {UPSERT}",
}
PUT_EVENTS = {
    "postgresql": f"INSERT INTO run_event ({', '.join(EVENT_COLUMNS)}) SELECT * FROM {_unnest(EVENT_COLUMNS)} ON CONFLICT DO NOTHING",
    "sqlite": f"INSERT INTO run_event ({', '.join(EVENT_COLUMNS)}) VALUES ({_marks(EVENT_COLUMNS)}) ON CONFLICT DO NOTHING",
}
OPEN = "ended_us IS NULL AND status <> 'waiting' AND NOT EXISTS (SELECT 1 FROM replica a WHERE a.id = run.owner AND a.lease_until_us >= {now})"
"""Condition: the run is running, and the lease of its replica has expired."""
MOST_TAKES = 3
"""Maximum number of takeovers of a run. It may be the run that crashes its replicas, so it is then marked as
lost.
"""
LOSE = f"""UPDATE run SET status = 'lost', ended_us = {{now}},
    cost = coalesce((SELECT sum(amount) FROM ledger WHERE ledger.run_id = run.id), cost) WHERE {OPEN} AND (kept = 0 OR takes >= {MOST_TAKES} OR made_us < {{oldest}})"""
"""The cost comes from the ledger, because the last events of a lost run may not have been written."""
ORPHANS = (
    f"SELECT id FROM run WHERE {OPEN} AND kept = 1 AND takes < {MOST_TAKES} ORDER BY made_us LIMIT {{limit}}"
)
TAKE = "UPDATE run SET owner = {owner}, takes = takes + 1 WHERE id IN ({orphans})"
MINE = "SELECT id FROM run WHERE owner = {owner} AND ended_us IS NULL AND kept = 1 AND status <> 'waiting'"
LEAVE = "UPDATE run SET owner = '' WHERE id {0} AND ended_us IS NULL"
PUT_WORKERS = {
    "postgresql": "INSERT INTO run_worker (run_id, worker, made_us) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]) ON CONFLICT DO NOTHING",
    "sqlite": "INSERT INTO run_worker (run_id, worker, made_us) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
}
PUT_TEXTS = {
    "postgresql": "INSERT INTO run_text (run_id, text) SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING",
    "sqlite": "INSERT INTO run_text (run_id, text) VALUES (?, ?) ON CONFLICT DO NOTHING",
}
MARK = {
    "postgresql": f"UPDATE run SET {{0}} = coalesce({{0}}, {CLOCK}) WHERE id = ANY ($1::text[]) AND ended_us IS NULL RETURNING id",
    "sqlite": "UPDATE run SET {0} = coalesce({0}, ?) WHERE id = ? AND ended_us IS NULL RETURNING id",
}
"""Sets a time in a column of a run, which its owner polls."""


@dataclass(frozen=True, slots=True)
class RunWrite:
    """Current state of a run, and its events since the last write.

    Args:
        row: row of the run.
        events: rows of events since the last write.
        workers: called workers of an ended run, for filters.
        text: searchable text of an ended run, for filters, or "".
    """

    row: RunRow
    events: tuple[EventRow, ...]
    workers: tuple[str, ...] = ()
    text: str = ""

    @property
    def worker_rows(self) -> list[tuple[str, str, int]]:
        """Rows of the table `run_worker`."""
        return [(self.row.id, worker, self.row.made_us) for worker in self.workers]


def run_write(records: RunRecords, events: tuple[EventRow, ...], *, kept: bool) -> RunWrite:
    """Return the write of a run in its current state."""
    row = run_row(records, kept=kept)
    if row.ended_us is None:
        return RunWrite(row, events)
    text = text_of(records)
    row = replace(row, body_bytes=row.body_bytes + len(text.encode()))
    return RunWrite(row, events, tuple(workers_of(records)), text)


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Takeover of at most `limit` runs by the replica `owner`."""

    owner: str
    limit: int


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a `RunWrite`.

    Args:
        is_owner: whether the write was applied: the run still belongs to this replica and had not ended
            before.
        is_cancelled: whether a client has cancelled the run.
        is_watched: whether a client watches the run.
    """

    is_owner: bool
    is_cancelled: bool = False
    is_watched: bool = False


async def write_runs(connection: PostgresConnection, items: Sequence[RunWrite]) -> list[Written]:
    """Write runs and their events."""
    async with connection.transaction():
        rows = await connection.fetch(PUT_RUNS["postgresql"], *_columns(RUN_COLUMNS, [i.row for i in items]))
        results = {
            row["id"]: Written(True, row["cancel_us"] is not None, row["watch_us"] is not None)
            for row in rows
        }
        mine = [item for item in items if item.row.id in results]
        if events := [row for item in mine for row in item.events]:
            await connection.execute(PUT_EVENTS["postgresql"], *_columns(EVENT_COLUMNS, events))
        if workers := [row for item in mine for row in item.worker_rows]:
            await connection.execute(PUT_WORKERS["postgresql"], *map(list, zip(*workers, strict=True)))
        if texts := [(item.row.id, item.text) for item in mine if item.text]:
            await connection.execute(PUT_TEXTS["postgresql"], *map(list, zip(*texts, strict=True)))
    return [results.get(item.row.id, Written(is_owner=False)) for item in items]


def write_runs_sqlite(connection: sqlite3.Connection, items: Sequence[RunWrite]) -> list[Written]:
    """Do the same as `write_runs`, in SQLite."""
    results: list[Written] = []
    for item in items:
        rows = connection.execute(PUT_RUNS["sqlite"], astuple(item.row)).fetchall()
        if rows:
            connection.executemany(PUT_EVENTS["sqlite"], [astuple(row) for row in item.events])
            connection.executemany(PUT_WORKERS["sqlite"], item.worker_rows)
            if item.text:
                connection.execute(PUT_TEXTS["sqlite"], (item.row.id, item.text))
        _, cancel_us, watch_us = rows[0] if rows else (None, None, None)
        results.append(Written(bool(rows), cancel_us is not None, watch_us is not None))
    return results


async def _lose(connection: PostgresConnection, items: Sequence[int]) -> list[int]:
    status = await connection.execute(LOSE.format(now=CLOCK, oldest="$1"), items[-1])
    return [int(status.rpartition(" ")[2])] * len(items)


def _lose_sqlite(connection: sqlite3.Connection, items: Sequence[int]) -> list[int]:
    return [connection.execute(LOSE.format(now=now_us(), oldest="?"), items[-1:]).rowcount] * len(items)


async def _take(connection: PostgresConnection, items: Sequence[TakeOver]) -> list[list[str]]:
    owner, limit = items[-1].owner, items[-1].limit
    orphans = ORPHANS.format(now=CLOCK, limit="$2") + " FOR UPDATE SKIP LOCKED"
    async with connection.transaction():
        await connection.execute(TAKE.format(owner="$1", orphans=orphans), owner, limit)
        rows = await connection.fetch(MINE.format(owner="$1"), owner)
    return [[row["id"] for row in rows]] * len(items)


def _take_sqlite(connection: sqlite3.Connection, items: Sequence[TakeOver]) -> list[list[str]]:
    owner, limit = items[-1].owner, items[-1].limit
    orphans = ORPHANS.format(now=now_us(), limit="?")
    connection.execute(TAKE.format(owner="?", orphans=orphans), (owner, limit))
    rows = connection.execute(MINE.format(owner="?"), (owner,)).fetchall()
    return [[row[0] for row in rows]] * len(items)


async def _leave(connection: PostgresConnection, items: Sequence[str]) -> list[None]:
    await connection.execute(LEAVE.format("= ANY ($1::text[])"), list(items))
    return [None] * len(items)


def _leave_sqlite(connection: sqlite3.Connection, items: Sequence[str]) -> list[None]:
    connection.executemany(LEAVE.format("= ?"), [(id,) for id in items])
    return [None] * len(items)


def _columns(names: Sequence[str], rows: Sequence[object]) -> list[list[Any]]:
    """Transpose rows to columns, as `unnest` takes them."""
    return [[getattr(row, name) for row in rows] for name in names]


WRITE: Operation[RunWrite, Written] = Operation("run", write_runs, write_runs_sqlite)
"""Write a run and its events."""


def _mark(name: str, column: str) -> Operation[str, bool]:
    async def mark(connection: PostgresConnection, ids: Sequence[str]) -> list[bool]:
        rows = await connection.fetch(MARK["postgresql"].format(column), ids)
        marked = {row["id"] for row in rows}
        return [id in marked for id in ids]

    def mark_sqlite(connection: sqlite3.Connection, ids: Sequence[str]) -> list[bool]:
        query = MARK["sqlite"].format(column)
        return [bool(connection.execute(query, (now_us(), id)).fetchall()) for id in ids]

    return Operation(name, mark, mark_sqlite)


CANCEL_RUN = _mark("end of a run", "cancel_us")
"""Ask the owner of a run to cancel it. Returns False if the run has ended or is not stored."""
WATCH_RUN = _mark("watcher of a run", "watch_us")
"""Ask the owner of a run to write pieces of its answer. Returns False if the run has ended or is not stored.
"""
LOSE_DEAD: Operation[int, int] = Operation("sweep of runs", _lose, _lose_sqlite)
"""Mark runs of dead replicas as lost. Returns their number.

A kept run is marked only if it started before the given time or has reached `MOST_TAKES`.
"""
TAKE_OVER: Operation[TakeOver, list[str]] = Operation("taking over of runs", _take, _take_sqlite)
"""Take ownership of kept runs of dead replicas. Returns the ids of all kept runs that this replica owns and
that run.
"""
LEAVE_RUN: Operation[str, None] = Operation("leaving of a run", _leave, _leave_sqlite)
"""Give up ownership of a run that this replica cannot continue, so that another replica can try."""
