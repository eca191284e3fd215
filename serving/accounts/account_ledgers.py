"""Who pays for a run: the ledger of the account that asked for it, in the store that all routers share."""

from typing import Literal

from conductor.run.record import Account
from serving.accounts.account_ledger import AccountLedger
from serving.accounts.replica_store import ReplicaStore


class AccountLedgers:
    """The ledgers that one router's runs draw on.

    Args:
        store: opened for the first account with a key: then it is there.
        when_away: what becomes of calls with a price while it is away; see `StoreSettings.when_away`.
    """

    def __init__(self, store: ReplicaStore, when_away: Literal["refuse", "serve"] = "refuse") -> None:
        self._store, self._refuses_when_away = store, when_away == "refuse"

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
