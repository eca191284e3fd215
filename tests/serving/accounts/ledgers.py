"""A ledger in a real database, and calls that draw on it."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import text

from serving.accounts.budget_limits import read_spending, set_budget
from serving.accounts.hold import Bill, HoldRequest, days_and_months, key_subject, team_subject
from serving.accounts.ledger_check import find_faults
from serving.accounts.ledger_store import LedgerStore
from serving.accounts.money import to_pico
from serving.database.address import Address
from serving.database.database import Database
from serving.database.migrate import open_database

CENT = Decimal("0.01")


@dataclass(frozen=True)
class Ledgers:
    """A ledger store with its database, and a new key in a new team."""

    database: Database
    store: LedgerStore
    key_id: str
    team_id: str

    def request(self, cents: int, *, is_unpriced: bool = False) -> HoldRequest:
        """Return a request to hold `cents`."""
        made_us = now_us()
        return HoldRequest(
            uuid.uuid4().hex, "wf_1", 1, self.key_id, self.team_id, *days_and_months(made_us), "dear",
            to_pico(cents * CENT), self.store.owner, made_us, is_unpriced,
        )  # fmt: skip

    async def set_caps(self, key_cents: int | None, team_cents: int | None = None) -> None:
        """Set the daily budgets of the key and the team."""
        for subject, cents in (
            (key_subject(self.key_id), key_cents),
            (team_subject(self.team_id), team_cents),
        ):
            await set_budget(self.database, subject, "day", None if cents is None else cents * CENT)

    async def cents(self) -> tuple[int, int]:
        """Return the cents spent and held today. Fail if key and team disagree."""
        both = {
            (int(today.spent_usd / CENT), int(today.held_usd / CENT))
            for subject in (key_subject(self.key_id), team_subject(self.team_id))
            for today in await read_spending(self.database, subject)
        }
        (amounts,) = both
        return amounts

    async def entries(self) -> list[tuple[str, int, int, int]]:
        """Return the ledger entries of the key: kind, cents, whether exact, whether above the hold."""
        async with self.database.reading() as connection:
            rows = await connection.execute(
                text("SELECT kind, amount, exact, above_hold FROM ledger WHERE key_id = :key ORDER BY id"),
                {"key": self.key_id},
            )
            return [(kind, amount // 10**10, exact, above) for kind, amount, exact, above in rows]

    async def states(self) -> list[str]:
        """Return the sorted states of the key's holds."""
        async with self.database.reading() as connection:
            rows = await connection.execute(
                text("SELECT state FROM hold WHERE key_id = :key ORDER BY 1"), {"key": self.key_id}
            )
            return list(rows.scalars())

    @asynccontextmanager
    async def windows_locked(self, more_cents: int = 0) -> AsyncGenerator[None]:
        """Lock the spend windows in another transaction that adds `more_cents` to their holds."""
        async with self.database.writing() as connection:
            await connection.execute(
                text("UPDATE spend_window SET held = held + :more WHERE subject IN (:key, :team)"),
                {
                    "more": more_cents * 10**10,
                    "key": key_subject(self.key_id),
                    "team": team_subject(self.team_id),
                },
            )
            yield

    async def see_no_fault(self) -> None:
        assert await find_faults(self.database) == []


def bill(request: HoldRequest, cents: int | None) -> Bill:
    return Bill(request.id, None if cents is None else to_pico(cents * CENT), now_us(), 10, 20, 5, "1/2")


def now_us() -> int:
    return time.time_ns() // 1000


@asynccontextmanager
async def open_ledgers(address: Address, renew_s: float = 60.0) -> AsyncGenerator[Ledgers]:
    """Open a ledger at `address` and create its schema."""
    async with await open_database(address) as database, LedgerStore(address, renew_s) as store:
        yield Ledgers(database, store, f"k{uuid.uuid4().hex}", f"t{uuid.uuid4().hex}")
