"""State that the routes share: the current pool, the sessions of runs, and the records of earlier runs."""

import logging
from collections.abc import Awaitable, Callable, Iterator

from conductor.errors import PodiumError, UnknownName, quote
from conductor.run.record import Account, RunRecords
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.caller import Caller
from serving.accounts.rates import RateCounter
from serving.pool import Pool
from serving.sessions.conductor_health import ConductorHealth
from serving.sessions.execution import PolicyFinder
from serving.sessions.pools import Pools
from serving.sessions.readiness import Readiness
from serving.sessions.sessions import Sessions
from serving.shares import in_slices
from serving.store.conversations import ConversationStore, MemoryConversations
from serving.store.memory_store import page_of, place
from serving.store.numbers import without_content
from serving.store.run_filter import ANY_RUN, RunFilter
from serving.store.store import RunPage, StoreFactory
from serving.telemetry import metrics
from serving.telemetry.measurement import Measurement, MeasurementSink

logger = logging.getLogger("podium")

BUDGET_LEFT, BUDGET_WINDOW = "x-podium-budget-left-usd", "x-podium-budget-window"
"""Response headers: the remaining amount of the caller's tightest budget, and which budget that is."""
ReplicaCount = Callable[[], Awaitable[dict[str, dict[str, int]]]]
"""Returns the replicas of each deployment by their state, on a cluster."""
TurnKeeper = Callable[["Service", RunRecords], Awaitable[None]]
"""Adds the result of a run that has ended or waits to its conversation. Called repeatedly, it adds the result once."""


async def _no_replicas() -> dict[str, dict[str, int]]:
    return {}


async def _no_turns(_: "Service", __: RunRecords) -> None:
    pass


class Service:
    """State of one router. A new pool serves new requests; active runs keep the pool that they began with.

    Args:
        pool: first pool.
        open_store: opens the store of records; None for an in-memory store.
        meter: of metrics.
        replicas: see `ReplicaCount`.
        ledgers: of teams and keys.
        policies: of teams and keys.
        rates: of teams and keys.
        conversations: of the Responses API; None for an in-memory store.
        keep_turn: see `TurnKeeper`.
    """

    def __init__(
        self,
        pool: Pool,
        open_store: StoreFactory | None = None,
        meter: MeasurementSink | None = None,
        replicas: ReplicaCount | None = None,
        ledgers: AccountLedgers | None = None,
        policies: PolicyFinder | None = None,
        rates: RateCounter | None = None,
        conversations: ConversationStore | None = None,
        keep_turn: TurnKeeper = _no_turns,
    ) -> None:
        self._pools, self._ledgers, self._keep_turn = Pools(pool), ledgers, keep_turn
        self.replicas: ReplicaCount = replicas or _no_replicas
        self.conversations: ConversationStore = conversations or MemoryConversations()
        self.sessions = Sessions(
            self._pools, open_store, rates or RateCounter(), ledgers, policies, meter, self.end_turn
        )
        self.store = self.sessions.store
        self.readiness = Readiness()
        self.refused: str | None = None
        """Why the latest settings were rejected; None if they are in use."""
        self.policy_faults: list[str] = []
        """Names in policies of teams and keys that the settings do not define."""

    @property
    def pool(self) -> Pool:
        """The pool that serves new requests."""
        return self._pools.current

    @property
    def conductor_health(self) -> ConductorHealth:
        """Health of the current pool's conductor."""
        return self._pools.conductor_health

    async def swap(self, pool: Pool) -> None:
        """Serve from `pool` from now on. Close the clients of the old pool after its last run."""
        self.refused = None
        await self._pools.swap(pool)

    @property
    def running(self) -> int:
        """Number of runs that this router executes."""
        return len(self.sessions.running)

    @property
    def is_store_away(self) -> bool:
        """Whether the store of the ledgers is unreachable."""
        return self._ledgers is not None and self._ledgers.is_away

    async def budget_headers(self, account: Account) -> dict[str, str]:
        """Return the budget headers of an account, or none if it has no budget."""
        balance = await self._ledgers.left(account) if self._ledgers else None
        if balance is None:
            return {}
        return {BUDGET_LEFT: f"{balance.usd:f}", BUDGET_WINDOW: f"{balance.whose} {balance.period}"}

    @property
    def calls(self) -> int:
        """Number of open and queued calls of all runs."""
        return self._pools.calls

    def levels(self) -> Iterator[Measurement]:
        """Return the current gauges."""
        yield Measurement(metrics.RUNNING, self.running)
        yield Measurement(metrics.ROOM, self.pool.settings.limits.max_running)
        yield Measurement(metrics.CONDUCTOR_FAILURES, self.conductor_health.failures)
        yield from self._pools.levels()

    async def end_turn(self, records: RunRecords) -> None:
        """Add the result of a run to its conversation. If the store is unreachable, log it: the client still
        gets its answer.
        """
        try:
            await self._keep_turn(self, records)
        except PodiumError as exc:
            logger.warning("failed to add run %s to its conversation: %s", records.record.id, exc)

    async def find_waiting(self, id: str) -> RunRecords | None:
        """Return a run with its texts if it waits for tools or is executed here. Otherwise return None.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        run = self.sessions.find(id)
        return run.records if run else await self.store.find_waiting(id)

    async def aclose(self) -> None:
        """Leave the kept runs to another replica, and flush the store."""
        await self.sessions.aclose()

    async def records(self, id: str, caller: Caller) -> RunRecords | None:
        """Return an active or ended run, or None if it is not stored or `caller` may not see it."""
        records = self.sessions.find_kept(id) or await self.store.get(id)
        return records if records is not None and caller.sees(records.record.account) else None

    async def newest(
        self, limit: int, caller: Caller, after: str | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        """Return the newest runs that `run_filter` selects and `caller` may see, active ones included,
        without their texts.

        Args:
            limit: highest number of runs.
            caller: of the request.
            after: id of a run; return only runs that began before it.
            run_filter: selects runs.

        Raises:
            UnknownName: the run `after` does not exist.
            StoreUnavailable: the store is unreachable.
        """
        before = None
        if after is not None:
            records = await self.records(after, caller)
            if records is None:
                raise UnknownName(f"No run {quote(after)} is stored.", param="after")
            before = place(records.record)
        page = await self.store.newest(limit, caller, before, run_filter)
        runs = {run.record.id: run for run in page.runs}
        async for run in in_slices(list(self.sessions.running.values())):
            record = run.record
            is_seen = caller.sees(record.account) and page.covers(place(record), before)
            if is_seen and run_filter.matches(run.records):
                runs[record.id] = without_content(run.records)
        return page_of(runs.values(), limit, page.end)
