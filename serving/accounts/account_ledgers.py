"""Who pays for a run: the ledger of the account that asked for it, in the store that all routers share."""

import asyncio

from conductor.run.record import Account
from serving.accounts.account_ledger import AccountLedger
from serving.accounts.ledger_store import LedgerStore
from serving.database.address import Address


class AccountLedgers:
    """The ledgers that one router's runs draw on; see `aclose`.

    Args:
        address: of the store. It is opened for the first account with a key: then it is there.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._store: LedgerStore | None = None
        self._opening = asyncio.Lock()

    async def of(self, account: Account, run_id: str) -> AccountLedger | None:
        """What the run of that id draws on; None where no key was asked for, and nobody's money is counted."""
        if not account.key_id:
            return None
        async with self._opening:
            if self._store is None:
                self._store = await LedgerStore(self._address).__aenter__()
        return AccountLedger(self._store, account.key_id, account.team_id or None, run_id)

    async def aclose(self) -> None:
        """Write the bills that are waiting, for a few seconds at most, and give the lease back."""
        if self._store is not None:
            await self._store.__aexit__()
