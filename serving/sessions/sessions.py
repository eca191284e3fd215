"""Runs of one replica: start, resume, cancel, take over and hand over runs.

A kept run is a run that outlives its client. Another replica continues it if this one ends.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from decimal import Decimal

from msgspec.structs import replace

from conductor.errors import PodiumError, StoreUnavailable, internal_error
from conductor.model.failure import Failure
from conductor.run.events import RunFailed, RunResumed
from conductor.run.fold import after
from conductor.run.record import Account, Record, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from conductor.run.turns import ClientReply
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.account_policy import Policies, check_tools, narrow_records, not_kept
from serving.accounts.caller import Caller
from serving.accounts.rates import NO_RATES, RateCounter, RateReservation
from serving.pool import Pool
from serving.sessions.deduplication import RequestDeduplicator
from serving.sessions.execution import PolicyFinder, RunExecutor, TurnEnder
from serving.sessions.pools import Pools
from serving.sessions.run_admission import RunAdmission, bytes_of_record
from serving.sessions.session import RunSpec, Session, SessionRegistry, close_answer
from serving.settings.settings import Settings
from serving.store.content import kept_part
from serving.store.idempotency import CachedAnswer
from serving.store.memory_store import MemoryStore
from serving.store.store import RecordStore, StoreFactory
from serving.telemetry.measurement import MeasurementSink

logger = logging.getLogger("podium")


class Sessions(SessionRegistry):
    """Runs of one replica. Close it with `aclose`."""

    def __init__(
        self,
        pools: Pools,
        open_store: StoreFactory | None,
        rates: RateCounter,
        ledgers: AccountLedgers | None,
        policies: PolicyFinder | None,
        meter: MeasurementSink | None,
        end_turn: TurnEnder,
    ) -> None:
        super().__init__()
        self._pools, self._is_leaving = pools, False
        self.store: RecordStore = (
            open_store(self) if open_store else MemoryStore(lambda: pools.current.settings.limits, self)
        )
        self.admission = RunAdmission(lambda: pools.current, self.store, rates)
        self.requests = RequestDeduplicator(
            self.store, lambda: pools.current.settings, self.admission.loading
        )
        self._executor = RunExecutor(
            self, self.store, pools, self.admission, ledgers, policies, meter, end_turn
        )

    @property
    def _keep_s(self) -> float:
        return self._pools.current.settings.store.keep_s

    @asynccontextmanager
    async def start(self, spec: RunSpec, caller: Caller) -> AsyncGenerator[Session]:
        """Start a run, execute it until the end of the block, and store its record. Raise Overloaded if it is
        not admitted.
        """
        with self.admission.admit(spec, caller.account) as leases:
            if spec.before_calls is not None:
                await spec.before_calls()
            run: Run | None = None
            try:
                async with self._executor.execute(spec, caller.account, leases) as session:
                    run = session.run
                    yield session
            finally:
                if run is not None and spec.is_cached:
                    self._keep_answer(run.record, spec.pool.settings)

    async def start_kept(self, spec: RunSpec, caller: Caller) -> Run:
        """Start a kept run for at most `store.keep_s`, and return it. The caller must close its `answer`.

        Raise Overloaded if it is not admitted, or NotAllowed if its texts may not be stored.
        """
        if not spec.task.permit.stores:
            raise not_kept()
        self.store.keep(spec.id)
        try:
            return await self.drive(spec.id, self.start(spec, caller), self._keep_s)
        except Exception:  # nothing has begun
            self.store.forget(spec.id)
            raise

    async def resume(
        self,
        record: Record,
        results: ClientReply,
        headers: dict[str, str],
        policies: Policies,
        rate: RateReservation = NO_RATES,
    ) -> Run | None:
        """Resume a run with tool results, within the policies of the caller, who must close the run's
        `answer`.

        Return None if the run no longer waits. If it cannot continue, raise an Overloaded or another
        PodiumError, and let it keep waiting.
        """
        coroutine = self._resume(record, results, headers, policies, rate)
        resuming = self.spawn(record.id, coroutine, f"run {record.id} resumed")
        try:
            return await asyncio.shield(resuming)
        except asyncio.CancelledError:  # the client left; the run continues
            resuming.add_done_callback(close_answer)
            raise

    def take_over(self, records: RunRecords, paid_usd: Decimal) -> None:
        """Continue a run of a replica that has ended. Its calls have cost `paid_usd` in the ledger."""
        id, leases = records.record.id, self.admission.admit_orphan(records.record)
        self.spawn(id, self._take_over(records, paid_usd, leases), f"run {id} continued")

    def linger(self, run: Run, answering: asyncio.Task[None]) -> bool:
        """Continue the response for a disconnected client for a while, so that a retry can join. Return False
        if no retry may join.
        """
        if run.record.status != "running" or not self.requests.may_join(run.record):
            return False
        self.spawn(run.record.id, self._linger(run, answering), "answer without its client")
        return True

    @contextmanager
    def read(self, id: str, account: Account) -> Generator[None]:
        """Count a reader of a run on any replica until the end of the block, or raise Overloaded."""
        with self.open(id) as session, self.admission.read(account, session.n_readers):
            session.n_readers += 1
            try:
                yield
            finally:
                session.n_readers -= 1

    @asynccontextmanager
    async def follow(
        self, id: str, account: Account, opened: AbstractAsyncContextManager[Run]
    ) -> AsyncGenerator[Run]:
        """Count a reader of a run and its memory, or raise Overloaded. `opened` opens the run for it
        (`following.py`).
        """
        with self.read(id, account):
            async with opened as run:
                with self.admission.memory.hold(account, bytes_of_record(run.record), "interactive"):
                    yield run

    async def cancel(self, id: str) -> None:
        if self.find(id) is not None:
            self.on_cancel(id)
        else:
            await self.store.cancel(id)

    def leave_all(self) -> None:
        """Stop all runs, because this process ends. Kept runs continue elsewhere, and the clients of other
        runs are notified. From now on, take over no runs.
        """
        self._is_leaving = True
        for session in list(self._sessions.values()):
            session.leave()

    async def aclose(self) -> None:
        """Stop all runs and write the unwritten data. Other replicas continue the kept runs."""
        tasks = list[asyncio.Task[object]]()
        for session in self._sessions.values():
            if session.is_kept and session.execution is not None:
                session.run.detach()
            tasks += session.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.store.aclose()
        await self.admission.rates.aclose()

    def loading_orphan(self, id: str) -> AbstractAsyncContextManager[object]:
        return self.admission.loading_orphan(id)

    def on_orphan(self, records: RunRecords, paid_usd: Decimal) -> None:
        if not self._is_leaving:
            self.take_over(records, paid_usd)

    def on_wait_end(self, records: RunRecords) -> None:
        """Log and count a run whose wait for tool results has ended. See `StoreListener`."""
        self._executor.report(records, kept_part(records), self._pools.current)

    def _keep_answer(self, record: Record, settings: Settings) -> None:
        """Cache the answer for equal requests, in a task, because the client may disconnect."""
        if (answer := self.requests.answer_of(record, settings)) is not None:
            self.spawn(record.id, self._write_answer(answer), "answer kept for equal requests")

    async def _write_answer(self, answer: CachedAnswer) -> None:
        await asyncio.shield(self.requests.keep_answer(answer))  # a stopping router has time to finish this

    async def _linger(self, run: Run, answering: asyncio.Task[None]) -> None:
        try:
            await self.requests.expect_retry(run.record)
            await asyncio.wait([answering], timeout=self.requests.joins_s)
        finally:
            answering.cancel()
            await asyncio.wait([answering])
        if not answering.cancelled() and (error := answering.exception()) is not None:
            logger.info(
                "Run %s, whose client has disconnected, ended with %s", run.record.id, type(error).__name__
            )

    async def _resume(
        self,
        record: Record,
        results: ClientReply,
        headers: dict[str, str],
        policies: Policies,
        rate: RateReservation,
    ) -> Run | None:
        leases = self.admission.admit_again(record, results)
        try:
            records = await self.store.resume(record.id)
            if records is None:
                leases.close()
                return None
            try:
                # Keep the original records, to suspend them again on failure.
                narrowed = self._narrow(records, policies)
                return await self._continue(narrowed, headers, results, policies, leases, rate)
            except Exception:
                try:
                    await self._wait_on(records)
                except StoreUnavailable:
                    self.store.forget(record.id)  # the next sweep takes the run over
                raise
        except BaseException:
            leases.close()
            raise

    async def _take_over(self, records: RunRecords, paid_usd: Decimal, leases: ExitStack) -> None:
        record = records.record
        if record.status == "waiting":  # its replica ended before it stored the tool results
            with leases:
                return await self._wait_on(records)
        try:  # narrow first, because the current policies also apply to the record of a failure
            policies = await self._executor.find_policies(record.account)
            records = self._narrow(records, policies)
            run = await self._continue(records, {}, None, policies, leases, NO_RATES, paid_usd)
            run.answer.close()
        except Exception as exc:  # noqa: BLE001 (for example, a worker was removed; nothing awaits this task)
            leases.close()
            error = exc if isinstance(exc, PodiumError) else internal_error(exc)
            await self._fail(records, error, records.lost_usd(paid_usd))

    async def _wait_on(self, records: RunRecords) -> None:
        """Suspend a run again that was taken over but cannot continue. This replica then owns it."""
        await self._executor.suspend(replace(records, record=replace(records.record, owner=self.store.owner)))

    def _narrow(self, records: RunRecords, policies: Policies) -> RunRecords:
        """Restrict a run to the current policies of its account."""
        return narrow_records(records, policies, self._pools.current.settings)

    async def _continue(
        self,
        records: RunRecords,
        headers: dict[str, str],
        results: ClientReply | None,
        policies: Policies,
        leases: ExitStack,
        rate: RateReservation,
        paid_usd: Decimal = Decimal(0),
    ) -> Run:
        record = records.record
        if results is not None and not record.task.permit.stores:
            raise not_kept("tools")  # the run would be stored at its next suspension
        new_tools = results.tools if results is not None else None
        check_tools(record.task.tools if new_tools is None else new_tools, policies)
        async with self._pools.using() as pool:
            team = _team_of(record.task, pool)
            spec = RunSpec(
                record.id,
                record.task,
                team,
                pool,
                headers,
                rate,
                resumed=records,
                results=results,
                paid_usd=paid_usd,
            )
            executed = self._executor.execute(spec, record.account, leases)
            return await self.drive(record.id, executed, self._keep_s)

    async def _fail(self, records: RunRecords, error: PodiumError, lost_usd: Decimal) -> None:
        at_s = records.record.wall_s
        resumed = after(records.record, RunResumed(at_s, self.store.owner, lost_usd))
        failed_record = after(resumed, RunFailed(at_s, Failure.of(error)))
        await self.store.put(kept_part(replace(records, record=failed_record)))


def _team_of(task: Task, pool: Pool) -> Team:
    is_fixed = task.plan is not None and task.plan_source != "client"
    return pool.whole_pool_team if is_fixed else pool.team_for(task.permit)
