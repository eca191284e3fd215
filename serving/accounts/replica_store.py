"""Connections of one router replica to the store: its database connections, its writer and its lease."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import Executable, Row

from serving.accounts.hold_statements import RENEW_S
from serving.accounts.ledger_store import LedgerStore, new_owner
from serving.database.address import Address
from serving.database.database import CONNECT_S, POOL_SIZE, Database, open_sqlite_reader
from serving.database.migrate import open_database
from serving.database.outages import connections_in_use, mapped_errors
from serving.database.writer import Item, Operation, Result

T = TypeVar("T")
MOST_READS = POOL_SIZE - 1
"""Maximum number of queries for stored texts and lists at the same time. One connection is left for budgets and
changes.
"""


class ReplicaStore:
    """Connections of one replica to the store, opened on first use. Close them with `aclose`.

    A SQLite file is therefore created only when something is stored.
    """

    def __init__(self, address: Address, renew_s: float = RENEW_S) -> None:
        self.address, self.owner = address, new_owner()
        self._renew_s = renew_s
        self._opening, self._reads = asyncio.Lock(), asyncio.Semaphore(MOST_READS)
        self._database: Database | None = None
        self._ledger: LedgerStore | None = None

    @property
    def is_away(self) -> bool:
        """True if the store was opened and the last attempt to reach it failed."""
        return self._ledger is not None and self._ledger.is_away

    async def database(self) -> Database:
        """Return the database, with a new schema if it is empty. Raise StoreError, or StoreUnavailable if it
        is away.
        """
        async with self._opening:
            if self._database is None:
                self._database = await open_database(self.address)
            return self._database

    async def ledger(self) -> LedgerStore:
        """Return this replica's ledger store, which has its lease and its writer."""
        if self._ledger is None:
            await self.database()
            async with self._opening:
                if self._ledger is None:
                    self._ledger = await LedgerStore(self.address, self._renew_s, self.owner).__aenter__()
        return self._ledger

    async def read(self, query: Executable) -> list[Row[Any]]:
        """Return the rows of a query, or none if the SQLite file does not exist, which is not created."""
        if self._database is None and not self.address.may_hold_something:
            return []
        database = await self.database()
        async with self._read_place(), database.reading() as connection:
            return list(await connection.execute(query))

    async def read_sqlite(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run `read` in a thread, in a transaction of the SQLite file. Return None if the file does not exist."""
        if self._database is None and not self.address.may_hold_something:
            return None
        await self.database()

        def read_in_thread() -> T:
            with open_sqlite_reader(self.address.path) as connection:
                return read(connection)

        async with self._read_place():
            with mapped_errors(self.address):
                return await asyncio.to_thread(read_in_thread)

    @asynccontextmanager
    async def _read_place(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._reads.acquire()
        except TimeoutError:
            raise connections_in_use(self.address) from None
        try:
            yield
        finally:
            self._reads.release()

    async def write(self, operation: Operation[Item, Result], item: Item) -> Result:
        """Write an item with the writer of this replica, and return the result. See `Writer.do`."""
        return await (await self.ledger()).writer.do(operation, item)

    async def aclose(self) -> None:
        """Write the waiting items, for a few seconds at most, release the lease, and close all connections."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.__aexit__()
        database, self._database = self._database, None
        if database is not None:
            await database.aclose()
