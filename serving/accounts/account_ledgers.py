"""Ledgers of the accounts that pay for runs, in the store that all routers share."""

import asyncio
import time
from contextlib import suppress
from typing import Literal

from conductor.errors import StoreUnavailable
from conductor.run.record import Account
from serving.accounts.account_ledger import AccountLedger
from serving.accounts.budget_limits import Balance, least_balance, read_spending
from serving.accounts.hold import key_subject, team_subject
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError

BALANCE_S, UNLIMITED_S = 0.5, 5.0
"""Seconds for which a result of `AccountLedgers.balance` is cached: `BALANCE_S` for an account with a budget,
`UNLIMITED_S` for an account without one."""
READ_WITHIN_S = 1.0
"""Timeout in seconds for reading the budgets of an account."""
MOST_BALANCES = 10_000
"""Maximum number of accounts in the cache."""


class AccountLedgers:
    """Factory of the account ledgers of one replica, whose store is opened for the first account with a key.
    For `when_away` see `StoreSettings`.
    """

    def __init__(self, store: ReplicaStore, when_away: Literal["refuse", "serve"] = "refuse") -> None:
        self._store, self._refuses_when_away = store, when_away == "refuse"
        self._balances = dict[Account, tuple[float, Balance | None]]()
        self._reading = dict[Account, asyncio.Task[Balance | None]]()

    @property
    def is_away(self) -> bool:
        """True if the store was opened and the last attempt to reach it failed."""
        return self._store.is_away

    async def of(self, account: Account, run_id: str) -> AccountLedger | None:
        """Return the ledger for a run, or None without a key, as nothing is charged."""
        if not account.key_id:
            return None
        return AccountLedger(
            await self._store.ledger(),
            account.key_id,
            account.team_id or None,
            run_id,
            refuses_when_away=self._refuses_when_away,
        )

    async def balance(self, account: Account) -> Balance | None:
        """Return the rest of the tightest budget, at most `BALANCE_S` old, or None without a budget or a store."""
        until_s, balance = self._balances.get(account, (0.0, None))
        if not account.key_id or time.monotonic() < until_s:
            return balance
        reading = self._reading.get(account)
        if reading is None:  # concurrent requests share one look-up
            reading = self._reading[account] = asyncio.create_task(self._read(account), name="budgets")
            reading.add_done_callback(lambda _: self._reading.pop(account, None))
        return await asyncio.shield(reading)

    async def _read(self, account: Account) -> Balance | None:
        balance = None
        with suppress(StoreUnavailable, StoreError, TimeoutError):
            async with asyncio.timeout(READ_WITHIN_S):
                database = await self._store.database()
                budgets = {"key": await read_spending(database, key_subject(account.key_id))}
                if account.team_id:
                    budgets["team"] = await read_spending(database, team_subject(account.team_id))
            balance = least_balance(budgets)
        if len(self._balances) >= MOST_BALANCES:
            del self._balances[next(iter(self._balances))]
        self._balances[account] = (time.monotonic() + (BALANCE_S if balance else UNLIMITED_S), balance)
        return balance
