"""Holds and bills of one router replica in the store, and the replica's lease on its holds.

A hold reserves the maximum cost of a call before it is sent. A bill replaces it by the actual cost. A call
waits until its hold is in the database. Bills are written in the background, and wait in memory during a
temporary outage of the database.

If a replica dies, its lease expires. Other replicas then charge its open holds in full.
"""
# asyncpg has no type annotations.
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
from serving.accounts.hold_statements import (
    ENTER,
    HOLD,
    LEASE_S,
    RELEASE,
    RENEW,
    RENEW_S,
    SETTLE,
    SWEEP,
    SWEEP_LIMIT,
    VOID,
)
from serving.database.address import Address
from serving.database.writer import Writer

logger = logging.getLogger("podium")

MOST_WAITING = 20_000
"""Maximum number of bills, of about 1 kB each, that wait for an unreachable database. Above it, new holds are
refused."""


def new_owner() -> str:
    """Return a unique id for a replica."""
    return f"replica_{uuid.uuid4().hex}"


class LedgerStore:
    """Ledger store of one replica. Use it as an async context manager, from one event loop.

    Args:
        address: address of a database that already has the schema.
        renew_s: seconds between two renewals of the lease. At each renewal, the open holds of dead replicas
            are charged.
        owner: id of this replica, or None for a new one.
    """

    def __init__(self, address: Address, renew_s: float = RENEW_S, owner: str | None = None) -> None:
        self.owner = owner or new_owner()
        self._writer = Writer(address)
        self._renew_s = renew_s
        self._lease_until_s = 0.0
        self._heart: asyncio.Task[None] | None = None
        self._bills = self._written_bills = 0

    async def __aenter__(self) -> Self:
        """Acquire the lease. If the database is unreachable, retry in the background."""
        with suppress(StoreUnavailable):
            await self.beat()
        self._heart = asyncio.create_task(self._beat_on(), name="lease of the store")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write the waiting bills, for a few seconds at most, and release the lease."""
        if self._heart is not None:
            self._heart.cancel()
            with suppress(asyncio.CancelledError):
                await self._heart
        self._writer.hurry()  # otherwise other replicas might charge holds whose bills still wait here
        self._writer.post(RELEASE, self.owner)
        await self._writer.aclose()

    @property
    def writer(self) -> Writer:
        """Writer of this replica. Other modules write to the same store through it."""
        return self._writer

    @property
    def is_away(self) -> bool:
        """True if holds cannot be made, because the last write failed or the lease has expired."""
        return self._writer.is_away or time.monotonic() > self._lease_until_s

    @property
    def is_full(self) -> bool:
        """True if too many bills wait for an unreachable database. New holds are then refused."""
        return self._writer.n_waiting >= MOST_WAITING

    async def hold(self, request: HoldRequest) -> Refusal | None:
        """Reserve the maximum cost of a call. Return None, or a refusal if a budget has too little left.

        Raises:
            StoreUnavailable: the database cannot be reached, the lease has expired, or too many bills wait to
                be written. Nothing is reserved.
        """
        if self.is_full or time.monotonic() > self._lease_until_s:
            raise StoreUnavailable(
                "The store of keys and budgets cannot be reached. Nothing was run. Try again.",
                detail="Too many ledger entries are waiting to be written."
                if self.is_full
                else "This replica could not renew its lease.",
            )
        try:
            return await self._hold(request)
        except BaseException:  # also on cancellation, because the hold may have been made
            self.void(request)
            raise

    async def _hold(self, request: HoldRequest) -> Refusal | None:
        written = self._written_bills
        refusal = await self._writer.do(HOLD, request)
        if refusal is not None and self._bills > written:
            # Some bills were not stored when the hold was refused. They release budget, so write them and retry.
            self._writer.hurry()
            refusal = await self._writer.do(HOLD, request)
        return refusal

    def settle(self, bill: Bill) -> "asyncio.Future[None]":
        """Replace a hold by its bill, in the background. The returned future ends with the write."""
        self._bills += 1
        written = self._writer.post(SETTLE, bill)
        written.add_done_callback(self._count_written)
        return written

    def _count_written(self, _: "asyncio.Future[None]") -> None:
        self._written_bills += 1

    def enter(self, entry: Entry) -> "asyncio.Future[None]":
        """Add a call that was made without a hold to the ledger, as soon as the store is reachable."""
        return self._writer.post(ENTER, entry)

    def tell_exhausted(self, refusal: Refusal) -> None:
        """Record that too little of a budget was left for a call, so that a webhook reports it soon."""
        alert = Exhausted(refusal.id, refusal.window, time.time_ns() // 1000)
        self._writer.post(NOTE_EXHAUSTED, alert)

    def void(self, request: HoldRequest) -> "asyncio.Future[None]":
        """Release the hold of an unsent call in the background. If the database lacks it, it is never made."""
        self._writer.hurry()
        return self._writer.post(VOID, request)

    async def beat(self) -> int:
        """Renew the lease, charge the open holds of dead replicas in full, and return their number."""
        began_s = time.monotonic()
        await self._writer.do(RENEW, self.owner)
        self._lease_until_s = began_s + LEASE_S
        swept = 0
        while batch := await self._writer.do(SWEEP, SWEEP_LIMIT):
            swept += batch
        if swept:
            logger.warning("Charged %d calls of stopped routers at their maximum cost", swept)
        return swept

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self.beat()
            except StoreUnavailable:
                pass  # the writer has logged it
            except (asyncpg.PostgresError, sqlite3.Error) as exc:  # for example, a table is missing
                logger.error("Cannot renew the lease of this replica: %s: %s", type(exc).__name__, exc)
