"""Holds and bills of one router replica in the store, and the replica's lease on what it holds.

Holding waits for the database; settling does not, and is written even if the database was away for a while.
"""
# asyncpg has no types of its own.
# pyright: reportMissingTypeStubs=false

import asyncio
import logging
import sqlite3
import time
import uuid
from contextlib import suppress
from typing import Self

import asyncpg

from conductor.errors import StoreUnavailable
from serving.accounts.alerts import NOTE_EXHAUSTED, Exhausted
from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal
from serving.accounts.leases import LEASE_S, RENEW_S, SWEEP_LIMIT
from serving.accounts.operations import ENTER, HOLD, RELEASE, RENEW, SETTLE, SWEEP, VOID
from serving.database.address import Address
from serving.database.writer import Writer

logger = logging.getLogger("podium")

MOST_WAITING = 20_000
"""Entries of the ledger that wait for a database that is away, each of about 1 kB. Beyond that nothing new is held."""


def new_owner() -> str:
    """An id for a replica; none is used twice."""
    return f"replica_{uuid.uuid4().hex}"


class LedgerStore:
    """Used from one event loop, as a context.

    Args:
        address: of a database whose schema is there.
        renew_s: between two renewals of the lease, each with a sweep.
        owner: this replica's id; made up where None.
    """

    def __init__(self, address: Address, renew_s: float = RENEW_S, owner: str | None = None) -> None:
        self.owner = owner or new_owner()
        self._writer = Writer(address)
        self._renew_s = renew_s
        self._lease_until_s = 0.0
        self._heart: asyncio.Task[None] | None = None
        self._bills = self._written_bills = 0

    async def __aenter__(self) -> Self:
        """Take the lease. Where the database is away this goes on without one, until it is back."""
        with suppress(StoreUnavailable):
            await self.beat()
        self._heart = asyncio.create_task(self._beat_on(), name="lease of the store")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what is waiting, for a few seconds at most, and give the lease back."""
        if self._heart is not None:
            self._heart.cancel()
            with suppress(asyncio.CancelledError):
                await self._heart
        self._writer.hurry()  # or others might sweep what is settled
        self._writer.post(RELEASE, self.owner)
        await self._writer.aclose()

    @property
    def writer(self) -> Writer:
        """The one writer of this replica, for others who write to the same store."""
        return self._writer

    @property
    def is_away(self) -> bool:
        """Whether nothing can be held: the database could not be reached when that was last tried, or not for as
        long as the lease.
        """
        return self._writer.is_away or time.monotonic() > self._lease_until_s

    @property
    def is_full(self) -> bool:
        """Whether so much waits for a database that is away that no further call may be billed."""
        return self._writer.n_waiting >= MOST_WAITING

    async def hold(self, request: HoldRequest) -> Refusal | None:
        """Reserve budget in the store. Return None, or the window that has too little left.

        Raises:
            StoreUnavailable: the database is away, this replica's lease has run out, or too much waits to be written.
                Nothing is reserved.
        """
        if self.is_full or time.monotonic() > self._lease_until_s:
            raise StoreUnavailable(
                "The store of keys and budgets cannot be reached. Nothing was called; try again.",
                detail="Too much waits to be written."
                if self.is_full
                else "This replica could not renew its lease.",
            )
        try:
            return await self._hold(request)
        except BaseException:  # also while it waits: whether it was reserved is not known
            self.void(request)
            raise

    async def _hold(self, request: HoldRequest) -> Refusal | None:
        written = self._written_bills
        refusal = await self._writer.do(HOLD, request)
        if refusal is not None and self._bills > written:
            # Some bills were not in the store when it refused. They release budget, so write them and try again.
            self._writer.hurry()
            refusal = await self._writer.do(HOLD, request)
        return refusal

    def settle(self, bill: Bill) -> "asyncio.Future[None]":
        """Replace a hold by its bill. Return a future that is done when the bill is stored; callers need not await it."""
        self._bills += 1
        written = self._writer.post(SETTLE, bill)
        written.add_done_callback(self._count_written)
        return written

    def _count_written(self, _: "asyncio.Future[None]") -> None:
        self._written_bills += 1

    def enter(self, entry: Entry) -> "asyncio.Future[None]":
        """Enter a call that was made without a hold, as soon as the store is back."""
        return self._writer.post(ENTER, entry)

    def tell_exhausted(self, refusal: Refusal) -> None:
        """Too little was left of a budget for a call: whoever is told of budgets is told of it, soon."""
        noted = Exhausted(refusal.id, refusal.window, time.time_ns() // 1000)
        self._writer.post(NOTE_EXHAUSTED, noted)

    def void(self, request: HoldRequest) -> "asyncio.Future[None]":
        """Give back what was held for a call that was not made, soon, after the bills that wait; also where it is
        held only later.
        """
        self._writer.hurry()
        return self._writer.post(VOID, request)

    async def beat(self) -> int:
        """Renew the lease, and post what dead replicas hold; gives how many calls that were.

        Raises:
            StoreUnavailable: the database is away.
        """
        began_s = time.monotonic()
        await self._writer.do(RENEW, self.owner)
        self._lease_until_s = began_s + LEASE_S
        swept = 0
        while found := await self._writer.do(SWEEP, SWEEP_LIMIT):
            swept += found
        if swept:
            logger.warning("posted %d calls of routers that ended, at the most they can have cost", swept)
        return swept

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self.beat()
            except StoreUnavailable:
                pass  # the writer has logged it
            except (asyncpg.PostgresError, sqlite3.Error) as exc:  # such as a table that somebody removed
                logger.error("the lease of this replica is not renewed: %s: %s", type(exc).__name__, exc)
