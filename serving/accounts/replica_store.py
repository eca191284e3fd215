"""What one router replica has open of the store: its database, its writer and its lease."""

import asyncio
from typing import Any

from sqlalchemy import Executable, Row

from serving.accounts.leases import RENEW_S
from serving.accounts.ledger_store import LedgerStore, new_owner
from serving.database.address import Address
from serving.database.database import Database
from serving.database.migrate import open_database


class ReplicaStore:
    """Opened at the first need, so that a SQLite file appears with the first thing that is stored; see
    `aclose`.

    Args:
        address: of the store.
        renew_s: between two renewals of the lease.
    """

    def __init__(self, address: Address, renew_s: float = RENEW_S) -> None:
        self.address, self.owner = address, new_owner()
        self._renew_s = renew_s
        self._opening = asyncio.Lock()
        self._database: Database | None = None
        self._ledger: LedgerStore | None = None

    @property
    def is_away(self) -> bool:
        """Whether the store was opened, and could not be reached when that was last tried."""
        return self._ledger is not None and self._ledger.is_away

    async def database(self) -> Database:
        """The database, its schema made where there was nothing.

        Raises:
            StoreError: it cannot be used, until the operator changes something.
            StoreUnavailable: it is away.
        """
        async with self._opening:
            if self._database is None:
                self._database = await open_database(self.address)
            return self._database

    async def ledger(self) -> LedgerStore:
        """This replica's holds, lease and writer.

        Raises:
            StoreError, StoreUnavailable: see `database`.
        """
        if self._ledger is None:
            await self.database()
            async with self._opening:
                if self._ledger is None:
                    self._ledger = await LedgerStore(self.address, self._renew_s, self.owner).__aenter__()
        return self._ledger

    async def read(self, query: Executable) -> list[Row[Any]]:
        """What the tables have for `query`. Where nothing can have been stored that is nothing, and the store stays
        closed.

        Raises:
            StoreError, StoreUnavailable: see `database`.
        """
        if not self.address.may_hold_something:
            return []
        async with (await self.database()).reading() as connection:
            return list(await connection.execute(query))

    async def aclose(self) -> None:
        """Write what is waiting, for a few seconds at most, give the lease back, and close everything."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.__aexit__()
        database, self._database = self._database, None
        if database is not None:
            await database.aclose()
