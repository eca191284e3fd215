"""Who pays for a run: the ledger of the account that asked for it, in the store that all routers share."""

import asyncio
import time
from contextlib import suppress
from typing import Literal

from conductor.errors import StoreUnavailable
from conductor.run.record import Account
from serving.accounts.account_ledger import AccountLedger
from serving.accounts.budgets import Left, least_left, read_spending
from serving.accounts.rates import key_subject, team_subject
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError

LEFT_S, UNLIMITED_S = 0.5, 5.0
"""How old `AccountLedgers.left` may be: of an account with a budget, and of one without."""
LEFT_WITHIN_S = 1.0
"""It is read within this time, or not at all."""
MOST_LEFT = 10_000
"""Accounts of which it is remembered."""


class AccountLedgers:
    """The ledgers that one router's runs draw on.

    Args:
        store: opened for the first account with a key: then it is there.
        when_away: what becomes of calls with a price while it is away; see `StoreSettings.when_away`.
    """

    def __init__(self, store: ReplicaStore, when_away: Literal["refuse", "serve"] = "refuse") -> None:
        self._store, self._refuses_when_away = store, when_away == "refuse"
        self._left = dict[Account, tuple[float, Left | None]]()
        self._reading = dict[Account, asyncio.Task[Left | None]]()

    @property
    def is_away(self) -> bool:
        """Whether the store was opened, and could not be reached when that was last tried."""
        return self._store.is_away

    async def of(self, account: Account, run_id: str) -> AccountLedger | None:
        """What the run of that id draws on; None where no key was asked for, and nobody's money is counted.

        Raises:
            StoreUnavailable: the store is away.
        """
        if not account.key_id:
            return None
        return AccountLedger(
            await self._store.ledger(),
            account.key_id,
            account.team_id or None,
            run_id,
            refuses_when_away=self._refuses_when_away,
        )

    async def left(self, account: Account) -> Left | None:
        """Return what is left of the tightest budget of an account, at most half a second old. None if nothing is limited,
        or the store does not answer.
        """
        until_s, left = self._left.get(account, (0.0, None))
        if not account.key_id or time.monotonic() < until_s:
            return left
        reading = self._reading.get(account)
        if reading is None:  # all who ask meanwhile share one look-up
            reading = self._reading[account] = asyncio.create_task(self._read(account), name="budgets")
            reading.add_done_callback(lambda _: self._reading.pop(account, None))
        return await asyncio.shield(reading)

    async def _read(self, account: Account) -> Left | None:
        left = None
        with suppress(StoreUnavailable, StoreError, TimeoutError):
            async with asyncio.timeout(LEFT_WITHIN_S):
                database = await self._store.database()
                budgets = {"key": await read_spending(database, key_subject(account.key_id))}
                if account.team_id:
                    budgets["team"] = await read_spending(database, team_subject(account.team_id))
            left = least_left(budgets)
        if len(self._left) >= MOST_LEFT:
            del self._left[next(iter(self._left))]
        self._left[account] = (time.monotonic() + (LEFT_S if left else UNLIMITED_S), left)
        return left
