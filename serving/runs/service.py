"""What the routes share: the pool of the moment, the runs under way, the records of those before."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Protocol

from conductor.errors import PodiumError, UnknownName, quote
from conductor.run.event_log import Journal
from conductor.run.ledger import Ledger
from conductor.run.lifecycle import open_run
from conductor.run.record import Account, Record, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from conductor.run.turns import Given
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.account_policy import Policies
from serving.accounts.caller import Caller
from serving.accounts.permission import not_kept
from serving.accounts.rates import Rates
from serving.pool import Pool
from serving.redaction.personal import redactor_of
from serving.redaction.texts import known_texts
from serving.runs.admission import enter_lines
from serving.runs.answer_cache import AnswerCache, answered_by, replay
from serving.runs.conductor_health import ConductorHealth
from serving.runs.content import ContentJournal, kept_part
from serving.runs.continuing import Continuing, Opened, Opener, PolicyFinder
from serving.runs.conversations import ConversationStore, MemoryConversations
from serving.runs.finding import ANY, Wanted
from serving.runs.followers import Followers
from serving.runs.held_bytes import bytes_of_given, bytes_of_record, bytes_of_task
from serving.runs.kept import KeptRuns
from serving.runs.memory_store import MemoryStore, page_of, place
from serving.runs.numbers import without_content
from serving.runs.places import Places
from serving.runs.pools import Pools
from serving.runs.readiness import Readiness
from serving.runs.rows import Item
from serving.runs.run_log import describe, log
from serving.runs.second_asking import SecondAskings
from serving.runs.store import RecordStore, RunPage, StoreFactory, StoreListener
from serving.shares import in_slices
from serving.telemetry import metrics, spans
from serving.telemetry.measurement import Measurement, Meter, of_run, report

logger = logging.getLogger("podium")

BUDGET_LEFT, BUDGET_WINDOW = "x-podium-budget-left-usd", "x-podium-budget-window"
"""Headers of an answer: what is left of the tightest budget of its caller, and whose budget for what."""
ReplicaCount = Callable[[], Awaitable[dict[str, dict[str, int]]]]
"""Asks for the replicas of each deployment by their state; whoever runs the service on a cluster knows."""
TurnKeeper = Callable[["Service", RunRecords], Awaitable[None]]
"""Adds the result of a run that has ended or waits to its conversation. Called repeatedly, it adds the result once."""


async def _no_replicas() -> dict[str, dict[str, int]]:
    return {}


async def _no_turns(_: "Service", __: RunRecords) -> None:
    pass


class Watcher(Protocol):
    """Receives the events of a run that runs here."""

    def hear(self, items: Sequence[Item]) -> None:
        """Take new events of the run; none: the run is over."""
        ...


class Service(StoreListener):
    """State of one router. A new pool serves new requests; runs under way keep the pool that they began with.

    Args:
        pool: serves new requests at first.
        open_store: opens the store of records; None: in memory.
        meter: of metrics.
        replicas: see `ReplicaCount`.
        ledgers: of teams and keys.
        policies: of teams and keys.
        rates: of teams and keys.
        conversations: of the Responses API; None: in memory.
        keep_turn: see `TurnKeeper`.
    """

    def __init__(
        self,
        pool: Pool,
        open_store: StoreFactory | None = None,
        meter: Meter | None = None,
        replicas: ReplicaCount | None = None,
        ledgers: AccountLedgers | None = None,
        policies: PolicyFinder | None = None,
        rates: Rates | None = None,
        conversations: ConversationStore | None = None,
        keep_turn: TurnKeeper = _no_turns,
    ) -> None:
        self._pools, self.meter, self.rates = Pools(pool), meter, rates or Rates()
        self.replicas: ReplicaCount = replicas or _no_replicas
        self.store: RecordStore = (
            open_store(self) if open_store else MemoryStore(lambda: self.pool.settings.limits, self)
        )
        self.conversations: ConversationStore = conversations or MemoryConversations()
        self._keep_turn, self._watchers, self._is_leaving = keep_turn, dict[str, list[Watcher]](), False
        self.answers = AnswerCache(self.store, lambda: self.pool.settings)
        self.second_askings = SecondAskings(self.store, lambda: self.pool.settings)
        self.kept = KeptRuns()
        self.continuing = Continuing(
            self.store, self.kept, lambda: self.pool, policies, self._recorded, self.end_turn
        )
        self._ledgers, self._running = ledgers, dict[str, Run]()
        self.places = Places(self._running, lambda: self.store, lambda: self.pool)
        self.followers = Followers(self.places.held, lambda: self.pool)
        self.conductor_health, self.readiness = ConductorHealth(), Readiness()
        self.refused: str | None = None
        """Why the latest settings were rejected; None if they are in use."""
        self.policy_faults: list[str] = []
        """What policies of teams and keys name and the settings do not have."""

    @property
    def pool(self) -> Pool:
        """The one that serves now."""
        return self._pools.current

    async def swap(self, pool: Pool) -> None:
        """Serve from `pool` from now on; the old one's clients are closed when its last run has ended."""
        self.refused = None
        # Unlike the health of workers, which outlives the pool: this one judges a conductor together with its
        # prompts, its key and its team, and new settings are how an operator sets them right.
        self.conductor_health = ConductorHealth()
        await self._pools.swap(pool)

    def is_running(self, id: str) -> bool:
        """Whether the run of that id is under way here."""
        return id in self._running

    @property
    def running(self) -> int:
        """Runs under way."""
        return len(self._running)

    @property
    def is_store_away(self) -> bool:
        """Whether what is paid cannot be written down at the moment."""
        return self._ledgers is not None and self._ledgers.is_away

    async def budget_headers(self, account: Account) -> dict[str, str]:
        """Return the headers that say what is left of the tightest budget of an account; none if nothing is limited."""
        left = await self._ledgers.left(account) if self._ledgers else None
        if left is None:
            return {}
        return {BUDGET_LEFT: f"{left.usd:f}", BUDGET_WINDOW: f"{left.whose} {left.period}"}

    @property
    def calls(self) -> int:
        """Calls to models of all runs together, under way or waiting for a slot."""
        return self._pools.calls

    def levels(self) -> Iterator[Measurement]:
        """What is under way at this moment."""
        yield Measurement(metrics.RUNNING, self.running)
        yield Measurement(metrics.ROOM, self.pool.settings.limits.max_running)
        yield Measurement(metrics.CONDUCTOR_FAILURES, self.conductor_health.failures)
        yield from self._pools.levels()

    @asynccontextmanager
    async def run(
        self,
        task: Task,
        team: Team,
        id: str,
        headers: dict[str, str],
        caller: Caller,
        *,
        of_cache: bool = False,
        let_in: Callable[[], Awaitable[None]] | None = None,
        n_beside: int = 0,
    ) -> AsyncGenerator[Run]:
        """Run `task` for `caller` inside its span, and keep its record, whatever happens. `of_cache`: an earlier
        run's answer may be given, and this one's kept. `let_in`: awaited once there is room, before anything is called.
        `n_beside`: so many other runs hold the same conversation.

        Raises:
            Overloaded: there is no room; nothing was run.
        """
        account = caller.account
        with (
            self.places.enter(id, account, bytes_of_task(task) // (n_beside + 1), task.priority),
            enter_lines(self.pool, team, task, account, id) as expected,
        ):
            if let_in is not None:
                await let_in()
            found = await self.answers.find(task, account) if of_cache else None
            if found is not None:
                expected.close()  # it calls nobody, for as long as its client reads
            opener = self._opener(found, task, team, id, caller)
            opened = self._recorded(id, task, headers, account, opener)
            async with self.answers.keeping(opened) if of_cache else opened as run:
                yield run

    def _opener(self, found: Record | None, task: Task, team: Team, id: str, caller: Caller) -> Opener:
        """What opens the run: of `found`, the answer is given again."""

        def open_it(ledger: Ledger | None, trace_id: str | None, journal: Journal) -> Opened:
            if found is not None:
                given = answered_by(found, task, id, caller.account)
                return replay(replace(given, owner=self.store.owner, trace_id=trace_id))
            return open_run(
                team,
                task,
                id,
                ledger=ledger,
                trace_id=trace_id,
                owner=self.store.owner,
                account=caller.account,
                journal=journal,
                write_down=self.continuing.write_down,
            )

        return open_it

    async def keep(self, task: Task, team: Team, id: str, headers: dict[str, str], caller: Caller) -> Run:
        """As `run`, and whoever leaves, it goes on for a bounded time; also on another replica, where this one
        ends. Who asks for it closes its `answer`.

        Raises:
            Overloaded: there is no room; nothing was run.
            NotAllowed: no text of it may be kept.
        """
        if not task.permit.stores:
            raise not_kept()
        self.store.keep(id)
        opened = self.run(task, team, id, headers, caller)
        try:
            return await self.kept.begin(opened, self.pool.settings.store.keep_s)
        except Exception:  # whatever it was, nothing has begun
            self.store.forget(id)
            raise

    @asynccontextmanager
    async def _recorded(
        self,
        id: str,
        task: Task,
        headers: dict[str, str],
        account: Account,
        open_it: Opener,
        given: Given | None = None,
    ) -> AsyncGenerator[Run]:
        """A run inside its span, its record kept at the end."""
        sent = (task, given) if task.permit.stores else ()
        texts = known_texts(redactor_of(task.permit), account.key_id, *sent)
        async with texts as known, self._pools.using() as pool:
            run: Run | None = None
            journal = ContentJournal(task.permit, self.store.note, known)
            try:
                with spans.workflow(task.model, id, headers) as span:
                    try:
                        ledger = await self._ledgers.of(account, id) if self._ledgers else None
                        async with open_it(ledger, spans.trace_id(span), journal.note) as run:
                            self._running[id] = run
                            self.places.begin(run.record)
                            yield run
                    finally:
                        if run is not None:
                            describe(span, run.record, content=pool.settings.telemetry.content)
            finally:
                self._running.pop(id, None)
                if run is not None:
                    await self._end(id, run, journal, pool)

    async def _end(self, id: str, run: Run, journal: ContentJournal, pool: Pool) -> None:
        """Settle and keep a run that has ended; it has its place meanwhile."""
        self.places.end(run.record)
        try:
            await self.rates.settle(id, run.records)
            if run.record.status != "waiting":  # else it is written down already, and not at its end
                await self._close(run, journal.kept(run.records), pool)
        finally:
            self.places.leave(id)

    async def _close(self, run: Run, kept: RunRecords, pool: Pool) -> None:
        """Keep of a run that has ended what may be kept, and report it."""
        await self.end_turn(run.records)
        await self.store.put(kept)
        if pool is self.pool:
            # what may be kept: it says why, in the log and to whoever asks whether it works
            self.conductor_health.count(kept.record)
        self._report(run.records, kept, pool)

    def on_wait_end(self, records: RunRecords) -> None:
        """See `StoreListener`. Log and count the run."""
        self._report(records, kept_part(records), self.pool)

    def _report(self, records: RunRecords, kept: RunRecords, pool: Pool) -> None:
        """Log and count a run that has ended. The log is told `kept`, what may be kept of it."""
        log(kept)
        report(self.meter, of_run(records, pool.providers))

    async def end_turn(self, records: RunRecords) -> None:
        """A run has ended or waits: see `TurnKeeper`. An answer that was paid for is given all the same where the store
        is away.
        """
        try:
            await self._keep_turn(self, records)
        except PodiumError as exc:
            logger.warning("the turn of %s was not added to its conversation: %s", records.record.id, exc)

    async def resume(
        self,
        id: str,
        given: Given,
        headers: dict[str, str],
        policies: Policies,
        request_id: str,
        record: Record,
    ) -> Run | None:
        """See `Continuing.resume`. What was taken of the rates for the request of that id is settled with the run.
        `record`: the run's, as it waits.

        Raises:
            Overloaded: there is no room; the run waits on.
        """
        priority, n_bytes = record.task.priority, bytes_of_record(record) + bytes_of_given(given)
        with self.places.enter(id, record.account, n_bytes, priority, goes_on=True):
            run = await self.continuing.resume(id, given, headers, policies)
        if run is not None:
            self.rates.pass_on(request_id, id)
            if not self.is_running(id):
                await self.rates.settle(id, run.records)
        return run

    async def find_waiting(self, id: str) -> RunRecords | None:
        """A run that waits for results of tools, exactly as it is; one that goes on here, as far as it has got. None:
        neither. For who resumes it, and nobody else: its texts are all there.

        Raises:
            StoreUnavailable: the store is away.
        """
        run = self._running.get(id)
        return run.records if run else await self.store.find_waiting(id)

    async def aclose(self) -> None:
        """Leave the runs that outlive this process to another one, and write what is waiting."""
        await self.second_askings.aclose()
        await self.kept.aclose()
        await self.store.aclose()
        await self.rates.aclose()

    async def records(self, id: str, caller: Caller) -> RunRecords | None:
        """A run, also while it goes on; None where it is not kept, or not for `caller` to see."""
        run = self._running.get(id)
        records = kept_part(run.records) if run else await self.store.get(id)
        return records if records is not None and caller.sees(records.record.account) else None

    async def newest(
        self, limit: int, caller: Caller, after: str | None = None, wanted: Wanted = ANY
    ) -> RunPage:
        """The runs that began last among those that `caller` may see and that are `wanted`, also those under way,
        without their texts.

        Args:
            limit: how many.
            caller: who asks.
            after: the id of a run: those that began before it.
            wanted: which runs.

        Raises:
            UnknownName: there is no such run.
            StoreUnavailable: the store is away.
        """
        before = None
        if after is not None:
            records = await self.records(after, caller)
            if records is None:
                raise UnknownName(f"No run {quote(after)} is kept here.", param="after")
            before = place(records.record)
        page = await self.store.newest(limit, caller, before, wanted)
        found = {run.record.id: run for run in page.runs}
        async for run in in_slices(list(self._running.values())):
            record = run.record
            is_seen = caller.sees(record.account) and page.covers(place(record), before)
            if is_seen and wanted.matches(run.records):
                found[record.id] = without_content(run.records)
        return page_of(found.values(), limit, page.end)

    async def cancel(self, id: str) -> None:
        """End a run, here or on another replica, where it is under way.

        Raises:
            StoreUnavailable: the store is away.
        """
        if id in self._running:
            self.on_cancel(id)
        else:
            await self.store.cancel(id)

    def leave_all(self) -> None:
        """Leave every run under way: this process is about to end. Those that outlive it go on elsewhere; the clients of all are
        told that it ended. No run of another replica is taken over from now on, nor one of these again.
        """
        self._is_leaving = True
        for id in list(self._running):
            self.on_taken_over(id)

    def on_taken_over(self, id: str) -> None:
        """See `StoreListener`. Stop the run: another replica continues it."""
        if (run := self._running.get(id)) is not None:
            run.detach()
            run.cancel()

    def on_orphan(self, records: RunRecords, paid_usd: Decimal) -> None:
        """See `StoreListener`."""
        if not self._is_leaving:
            self.continuing.take_over(records, paid_usd)

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        """See `StoreListener`."""
        for watcher in self._watchers.get(id, ()):
            watcher.hear(items)

    def watchers(self, id: str) -> Sequence[Watcher]:
        """Return those that receive the events of a run."""
        return self._watchers.get(id, ())

    def add_watcher(self, id: str, watcher: Watcher) -> None:
        """Send the events of a run to `watcher` while it runs here."""
        self._watchers.setdefault(id, []).append(watcher)

    def remove_watcher(self, id: str, watcher: Watcher) -> None:
        """Undo `add_watcher`."""
        self._watchers[id].remove(watcher)
        if not self._watchers[id]:
            del self._watchers[id]

    def on_watch(self, id: str) -> None:
        """See `StoreListener`."""
        if (run := self._running.get(id)) is not None:
            run.watch()

    def on_cancel(self, id: str) -> None:
        """See `StoreListener`."""
        if (run := self._running.get(id)) is not None:
            run.cancel()
