"""Files and batches in the database that all replicas share.

One replica works on a batch and owns it. If this replica's lease expires, another replica takes over the
batch.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Row,
    ScalarSelect,
    Select,
    Table,
    Text,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.accounts.replica_store import ReplicaStore
from serving.batches.model import OPEN, Batch, LineResult, StoredFile
from serving.batches.store import Change
from serving.database.clock import NOW_US, now_us
from serving.database.inserts import RowInsert, insert_into
from serving.database.schema import batch as batch_table
from serving.database.schema import batch_line, replica, stored_file
from serving.database.writer import Operation
from serving.fairness import in_slices
from serving.store.queries import owner_condition

FILE = (stored_file.c.id, stored_file.c.key_id, stored_file.c.team_id, stored_file.c.purpose, stored_file.c.name, stored_file.c.n_bytes, stored_file.c.made_us, stored_file.c.drop_us)  # fmt: skip
MOST_AT_ONCE = 20
"""Maximum number of batches that a replica takes over in one transaction."""


PUT_LINES = RowInsert(batch_line, ["batch_id", "number", "is_error", "body"])


def _put_results(connection: Connection, items: Sequence[tuple[str, LineResult]]) -> list[None]:
    rows = [(batch_id, each.number, int(each.is_error), each.body) for batch_id, each in items]
    PUT_LINES.execute(connection, sorted(rows, key=lambda row: row[:2]))  # no deadlock
    return [None] * len(items)


PUT_RESULT: Operation[tuple[str, LineResult], None] = Operation("result of a batch line", _put_results)
"""Operation that stores the result of a line, unless the line already has a result."""


class DatabaseBatchStore:
    def __init__(self, store: ReplicaStore) -> None:
        self.owner, self._store = store.owner, store

    async def add_file(self, file: StoredFile, body: bytes | ScalarSelect[bytes]) -> None:
        """See `BatchStore.add_file`. The database can also compute `body`, so that it is never in memory here."""
        row = asdict(file) | {"key_id": file.account.key_id, "team_id": file.account.team_id, "body": body}
        del row["account"]
        new = insert_into(self._store.address.kind, stored_file).values(row)
        async with (await self._store.database()).writing() as connection:
            await connection.execute(new.on_conflict_do_nothing())

    async def file(self, id: str) -> StoredFile | None:
        rows = await self._store.read(
            select(*FILE).where(stored_file.c.id == id, stored_file.c.drop_us > now_us())
        )
        return _file(rows[0]) if rows else None

    async def content(self, id: str) -> bytes | None:
        query = select(stored_file.c.body).where(stored_file.c.id == id, stored_file.c.drop_us > now_us())
        rows = await self._store.read(query)
        return rows[0].body if rows else None

    async def piece(self, id: str, begin: int, n_bytes: int) -> bytes | None:
        if self._store.address.kind == "sqlite":
            return await self._store.read_sqlite(lambda connection: _piece(connection, id, begin, n_bytes))
        piece = func.substr(stored_file.c.body, begin + 1, n_bytes, type_=LargeBinary).label("piece")
        rows = await self._store.read(
            select(piece).where(stored_file.c.id == id, stored_file.c.drop_us > now_us())
        )
        return rows[0].piece if rows else None

    async def files(
        self,
        caller: Caller,
        limit: int,
        after: StoredFile | None = None,
        purpose: str | None = None,
        *,
        newest_first: bool = True,
    ) -> list[StoredFile]:
        query = select(*FILE).where(_visible(stored_file, caller), stored_file.c.drop_us > now_us())
        if purpose is not None:
            query = query.where(stored_file.c.purpose == purpose)
        query = _first(query, stored_file, limit, after, newest_first=newest_first)
        return [_file(row) async for row in in_slices(await self._store.read(query))]

    async def file_usage(self, account: Account) -> tuple[int, int]:
        n_bytes = func.coalesce(func.sum(stored_file.c.n_bytes), 0).label("n_bytes")
        query = select(func.count().label("n"), n_bytes).where(
            owner_condition(stored_file, account), stored_file.c.drop_us > now_us()
        )
        rows = await self._store.read(query)
        return (int(rows[0].n), int(rows[0].n_bytes)) if rows else (0, 0)

    async def delete_file(self, id: str) -> None:
        async with (await self._store.database()).writing() as connection:
            await connection.execute(delete(stored_file).where(stored_file.c.id == id))

    async def add(self, batch: Batch) -> None:
        await self._store.ledger()  # its lease shows that the owner is alive
        async with (await self._store.database()).writing() as connection:
            await connection.execute(insert(batch_table).values(_row(batch)))

    async def get(self, id: str) -> Batch | None:
        rows = await self._store.read(select(batch_table.c.body).where(batch_table.c.id == id))
        return _batch(rows[0].body) if rows else None

    async def batches(self, caller: Caller, limit: int, after: Batch | None = None) -> list[Batch]:
        query = select(batch_table.c.body).where(_visible(batch_table, caller))
        query = _first(query, batch_table, limit, after)
        return [_batch(row.body) for row in await self._store.read(query)]

    async def count_open(self, account: Account) -> int:
        open_ones = owner_condition(batch_table, account) & batch_table.c.status.in_(OPEN)
        rows = await self._store.read(select(func.count()).select_from(batch_table).where(open_ones))
        return int(rows[0][0]) if rows else 0

    async def change(self, id: str, change: Change) -> Batch:
        async with (await self._store.database()).writing() as connection:
            result = await connection.execute(
                select(batch_table.c.body).where(batch_table.c.id == id).with_for_update()
            )
            row = result.first()
            if row is None:
                raise KeyError(id)
            new_batch = change(_batch(row.body))
            await connection.execute(
                update(batch_table).where(batch_table.c.id == id).values(_row(new_batch))
            )
        return new_batch

    async def take(self) -> list[Batch]:
        if not self._store.address.may_hold_something:
            return []
        await self._store.ledger()  # its lease shows that this replica is alive
        lives = select(replica.c.id).where(
            replica.c.id == batch_table.c.owner, replica.c.lease_until_us >= NOW_US
        )
        orphans = (
            select(batch_table.c.body)
            .where(batch_table.c.status.in_(OPEN), ~lives.exists())
            .limit(MOST_AT_ONCE)
        )
        batches: list[Batch] = []
        async with (await self._store.database()).writing() as connection:
            for row in await connection.execute(orphans.with_for_update(skip_locked=True)):
                mine = replace(_batch(row.body), owner=self.owner)
                await connection.execute(
                    update(batch_table).where(batch_table.c.id == mine.id).values(_row(mine))
                )
                batches.append(mine)
        return batches

    async def put_result(self, batch_id: str, result: LineResult) -> None:
        await self._store.write(PUT_RESULT, (batch_id, result))

    async def counts(self, batch_id: str) -> tuple[int, int]:
        query = select(batch_line.c.is_error, func.count().label("n")).where(
            batch_line.c.batch_id == batch_id
        )
        counts = {
            row.is_error: int(row.n) for row in await self._store.read(query.group_by(batch_line.c.is_error))
        }
        return counts.get(0, 0), counts.get(1, 0)

    async def numbers(self, batch_id: str) -> set[int]:
        rows = await self._store.read(select(batch_line.c.number).where(batch_line.c.batch_id == batch_id))
        return {row.number for row in rows}

    async def write_results(self, batch_id: str, file: StoredFile, *, errors: bool) -> bool:
        of_file = (batch_line.c.batch_id == batch_id) & (batch_line.c.is_error == int(errors))
        n_bytes = func.coalesce(func.sum(func.length(batch_line.c.body) + 1), 0).label("n_bytes")
        rows = await self._store.read(select(n_bytes).where(of_file))
        if not rows or not rows[0].n_bytes:
            return False
        body = _join(self._store.address.kind, of_file)
        await self.add_file(replace(file, n_bytes=int(rows[0].n_bytes)), body)
        return True

    async def result_bytes(self, batch_id: str) -> int:
        n_bytes = func.coalesce(func.sum(func.length(batch_line.c.body)), 0).label("n_bytes")
        rows = await self._store.read(select(n_bytes).where(batch_line.c.batch_id == batch_id))
        return int(rows[0].n_bytes) if rows else 0

    async def drop_results(self, batch_id: str) -> None:
        async with (await self._store.database()).writing() as connection:
            await connection.execute(delete(batch_line).where(batch_line.c.batch_id == batch_id))


def _piece(connection: sqlite3.Connection, id: str, begin: int, n_bytes: int) -> bytes | None:
    """Return a piece of a file. SQLite's `substr` would load the whole file."""
    query = "SELECT rowid FROM stored_file WHERE id = ? AND drop_us > ?"
    row = connection.execute(query, (id, now_us())).fetchone()
    if row is None:
        return None
    with connection.blobopen("stored_file", "body", row[0], readonly=True) as content:
        content.seek(min(begin, len(content)))
        return content.read(n_bytes)


def _join(kind: str, of_file: ColumnElement[bool]) -> ScalarSelect[bytes]:
    """Return the content of a file of results. SQLite joins only texts, in the order of the inner query."""
    if kind == "postgresql":
        line = batch_line.c.body.op("||")(literal(b"\n", LargeBinary))
        joined = func.string_agg(line, aggregate_order_by(literal(b"", LargeBinary), batch_line.c.number))
        return select(joined).where(of_file).scalar_subquery()
    ordered = select(batch_line.c.body).where(of_file).order_by(batch_line.c.number).subquery()
    joined = func.group_concat(cast(ordered.c.body, Text) + literal("\n"), literal(""))
    return select(cast(joined, LargeBinary)).scalar_subquery()


def _first(
    query: Select[*tuple[Any, ...]],
    table: Table,
    limit: int,
    after: StoredFile | Batch | None,
    *,
    newest_first: bool = True,
) -> Select[*tuple[Any, ...]]:
    """Return the query for its first rows by time after `after`."""
    order = (table.c.made_us, table.c.id)
    if after is not None:
        row, place = tuple_(*order), tuple_(literal(after.made_us), literal(after.id))
        query = query.where(row < place if newest_first else row > place)
    return query.order_by(*(each.desc() if newest_first else each for each in order)).limit(limit)


def _visible(table: Table, caller: Caller) -> ColumnElement[bool]:
    """Return the SQL condition for rows that the caller may see. It corresponds to `Caller.sees`."""
    return true() if caller.sees_every_run else owner_condition(table, caller.account)


def _file(row: Row[Any]) -> StoredFile:
    account = Account(row.key_id, row.team_id)
    return StoredFile(row.id, account, row.purpose, row.name, row.n_bytes, row.made_us, row.drop_us)


def _row(item: Batch) -> dict[str, Any]:
    return {
        "id": item.id,
        "key_id": item.account.key_id,
        "team_id": item.account.team_id,
        "status": item.status,
        "owner": item.owner,
        "made_us": item.made_us,
        "drop_us": item.drop_us,
        "body": orjson.dumps(item, default=_account_json).decode(),
    }


def _account_json(account: Account) -> dict[str, str]:
    """Convert an account to JSON, without a `type` field."""
    return {"key_id": account.key_id, "team_id": account.team_id}


def _batch(body: str) -> Batch:
    fields = orjson.loads(body)
    return Batch(**fields | {"account": Account(**fields["account"])})
