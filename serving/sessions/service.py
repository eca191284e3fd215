"""State of one router that its HTTP routes share: the pools of workers, the active runs and the run store."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager

from conductor.errors import PodiumError, UnknownName, quote
from conductor.run.record import Account, Record, RunRecords
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.caller import Caller
from serving.accounts.rates import RateCounter
from serving.fairness import in_slices
from serving.pool import Pool
from serving.sessions.earlier_turns import EarlierTurns
from serving.sessions.execution import PolicyFinder
from serving.sessions.pools import ConductorHealth, Pools
from serving.sessions.readiness import Readiness
from serving.sessions.sessions import Sessions
from serving.settings.settings import Settings
from serving.store.content import for_list, without_content
from serving.store.conversations import ConversationStore, MemoryConversations
from serving.store.memory_store import page_of, place
from serving.store.prompt_caches import PromptCaches, rows_of
from serving.store.run_filter import ANY_RUN, RunFilter
from serving.store.store import RunInfo, RunPage, StoreFactory
from serving.telemetry import metrics
from serving.telemetry.measurement import Measurement, MeasurementSink

logger = logging.getLogger("podium")

BUDGET_LEFT, BUDGET_WINDOW = "x-podium-budget-left-usd", "x-podium-budget-window"
"""Response headers: what is left of the caller's tightest budget, and which budget this is."""
MOST_NOTED = 1_000
"""Maximum number of runs in memory whose turn was noted. A run that ends is reported up to twice."""
ReplicaCount = Callable[[], Awaitable[dict[str, dict[str, int]]]]
"""Function that returns the number of replicas of each Serve deployment, by their state."""
TurnKeeper = Callable[["Service", RunRecords], Awaitable[None]]
"""Function that adds a run's result to its conversation once, at its end or its wait for tools."""


async def _no_replicas() -> dict[str, dict[str, int]]:
    return {}


async def _no_turns(_: "Service", __: RunRecords) -> None:
    pass


class Service:
    """State of one router. A request keeps the pool that it started with, even after the settings change.

    Args:
        open_store: function that opens the run store, or None for a store in memory.
        conversations: store for conversations of the Responses API, or None for a store in memory.
        prompt_caches: rows on the prompt caches of conversations, or None to have them in memory only.
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
        prompt_caches: PromptCaches | None = None,
    ) -> None:
        self._pools, self._ledgers, self._keep_turn = Pools(pool), ledgers, keep_turn
        self.replicas: ReplicaCount = replicas or _no_replicas
        self.conversations: ConversationStore = conversations or MemoryConversations()
        self.sessions = Sessions(
            self._pools, open_store, rates or RateCounter(), ledgers, policies, meter, self.end_turn
        )
        self.store = self.sessions.store
        self.prompt_caches = prompt_caches or PromptCaches()
        keep_s, loading = lambda: self.settings().conversation.keep_s, self.sessions.admission.loading
        self.earlier_turns = EarlierTurns(self.store, keep_s, loading)
        self._noted = OrderedDict[str, int]()
        """Number of the newest event of each run that was noted last."""
        self.readiness = Readiness()
        self.refused: str | None = None
        """Why the latest settings were rejected, or None if they are in use."""
        self.policy_faults: list[str] = []
        """Messages for names in policies of teams and keys that the settings do not define."""

    @property
    def pool(self) -> Pool:
        return self._pools.current

    def use_pool(self, pool: Pool | None = None) -> AbstractAsyncContextManager[Pool]:
        """Use a pool, by default the current one, until the end of the block. See `Pools.using`."""
        return self._pools.using(pool)

    def settings(self) -> Settings:
        return self.pool.settings

    @property
    def conductor_health(self) -> ConductorHealth:
        return self._pools.conductor_health

    async def swap(self, pool: Pool) -> None:
        """Use `pool` for new requests. See `Pools.swap`."""
        self.refused = None
        await self._pools.swap(pool)

    @property
    def running(self) -> int:
        """Number of runs that this router executes."""
        return len(self.sessions.running)

    @property
    def is_store_away(self) -> bool:
        """True if the store of the ledgers is unreachable."""
        return self._ledgers is not None and self._ledgers.is_away

    async def budget_headers(self, account: Account) -> dict[str, str]:
        """Return the response headers on an account's budget. There are none if it has no budget."""
        balance = await self._ledgers.balance(account) if self._ledgers else None
        if balance is None:
            return {}
        return {BUDGET_LEFT: f"{balance.usd:f}", BUDGET_WINDOW: f"{balance.owner} {balance.period}"}

    @property
    def calls(self) -> int:
        """Number of open and queued calls of all runs."""
        return self._pools.calls

    def levels(self) -> Iterator[Measurement]:
        """Yield the gauges of this router: its runs, its capacity, and the load and health of its workers."""
        yield Measurement(metrics.RUNNING, self.running)
        yield Measurement(metrics.ROOM, self.settings().limits.max_running)
        yield Measurement(metrics.CONDUCTOR_FAILURES, self.conductor_health.failures)
        yield from self._pools.levels()

    async def end_turn(self, records: RunRecords, stored_records: RunRecords | None = None) -> None:
        """Add a run's result to its conversation, and note what the next turn of the conversation has in caches.

        A failure is logged, and the client still gets its answer.

        Args:
            records: records of a run that has ended or waits for tool results.
            stored_records: records in the form in which they are stored, if that is known yet.
        """
        record = records.record
        try:
            if records.has_content and self._noted.get(record.id) != record.seq:
                self._note(record)
            if stored_records is not None and record.may_call_tools:
                self.earlier_turns.note_stored(stored_records.record)
            if record.task.echo:  # only the Responses API has conversations, and it sets the echo
                await self._keep_turn(self, records)
        except PodiumError as exc:
            logger.warning("Cannot add run %s to its conversation: %s", record.id, exc)
        except Exception:
            logger.exception("Cannot note the turn of run %s", record.id)

    def _note(self, record: Record) -> None:
        """Note the caches and tool turns of a run, once for each state that it ends or waits in."""
        self._noted[record.id] = record.seq
        while len(self._noted) > MOST_NOTED:
            self._noted.popitem(last=False)
        if record.may_call_tools:
            self.earlier_turns.remember(record)
        for row in rows_of(record, self.settings().conversation.keep_s):
            self.prompt_caches.keep(row, record.account.key_id, stores=record.task.permit.stores)

    async def find_waiting(self, id: str) -> RunRecords | None:
        """Return a run that waits for tool results or is active here, without redaction, or None."""
        run = self.sessions.find(id)
        return run.records if run else await self.store.find_waiting(id)

    async def aclose(self) -> None:
        """Stop all runs and write the rest. Other replicas continue the runs that outlive their clients."""
        await self.sessions.aclose()
        await self.prompt_caches.flush()

    async def records(self, id: str, caller: Caller) -> RunRecords | None:
        """Return an active or stored run, or None if there is no such run or `caller` may not see it. Raise
        Overloaded if there is no memory to load it.
        """
        records = self.sessions.find_kept(id)
        if records is None:
            async with self.sessions.admission.loading(id, caller.account) as info:
                if info is None or not caller.sees(info.account):
                    return None
                records = await self.store.get(id)
        return records if records is not None and caller.sees(records.record.account) else None

    async def info(self, id: str, caller: Caller) -> RunInfo | None:
        """Return facts about an active or stored run, as `records` does. No texts are loaded."""
        run = self.sessions.find(id)
        if run is not None:
            info = RunInfo.of(run.records, has_content=run.record.task.permit.stores)
        else:
            info = await self.store.info(id)
        return info if info is not None and caller.sees(info.account) else None

    async def newest(
        self, limit: int, caller: Caller, after: str | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        """Return the newest runs that `caller` may see, older than `after`, as lists show them. Raise
        UnknownName if there is no `after`.
        """
        before = None
        if after is not None:
            info = await self.info(after, caller)
            if info is None:
                raise UnknownName(
                    f"after: run {quote(after)} not found. GET /v1/workflows lists your runs.", param="after"
                )
            before = info.place
        page = await self.store.newest(limit, caller, before, run_filter)
        runs = {run.record.id: run for run in page.runs}
        async for run in in_slices(list(self.sessions.running.values())):
            record = run.record
            is_seen = caller.sees(record.account) and page.covers(place(record), before)
            if is_seen and run_filter.matches(run.records):
                runs[record.id] = for_list(self.sessions.find_kept(record.id) or without_content(run.records))
        return page_of(runs.values(), limit, page.end)
