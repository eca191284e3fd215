"""Execution of runs: each run gets a trace span, and its outcome is stored, logged and counted."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager

from msgspec.structs import replace

from conductor.errors import PodiumError, QuestionRejected
from conductor.model.failure import Attempt, Failure
from conductor.run.event_log import EventLog, Journal
from conductor.run.ledger import Ledger
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.plan_record import StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.run import Run
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.account_policy import UNLIMITED, Policies
from serving.pool import Pool
from serving.redaction.failures import line_of, words_in_span
from serving.redaction.texts import RUN_TEXTS, redact_ahead, redactor_of
from serving.sessions.deduplication import to_cached_record
from serving.sessions.pools import Pools
from serving.sessions.run_admission import RunAdmission
from serving.sessions.session import Execution, RunSpec, Session, SessionRegistry
from serving.settings.sections import StoreSettings
from serving.store.content import ContentJournal
from serving.store.store import RecordStore
from serving.telemetry import spans
from serving.telemetry.logs import FIELDS
from serving.telemetry.measurement import MeasurementSink, of_run, report

logger = logging.getLogger("podium")


def faults(records: RunRecords) -> list[str]:
    """Return a line for each failure in a run, for operators.

    Failures after which a retry or another worker succeeded are included. Each failure appears once, and the
    first cause comes first. The lines contain no error messages if the texts of the run may not be stored.
    """
    has_words = records.has_content
    lines: list[str] = []
    for record in records:
        failures: list[Failure | Attempt] = []
        for plan in record.plans:
            for holder in (plan, *plan.steps):
                results = (
                    holder.results
                    if isinstance(holder, StepRecord)
                    else [holder.result]
                    if holder.result
                    else []
                )
                failures += [attempt for result in results for attempt in result.attempts]
                failures += holder.failure.causes if holder.failure is not None else ()
        failures += record.failure.causes if record.failure is not None else ()
        failures = [each for each in failures if isinstance(each, Failure) or _is_fault(each)]
        lines += [line_of(each, has_words=has_words) for each in failures]
    return list(dict.fromkeys(lines))


def _is_fault(attempt: Attempt) -> bool:
    """Return whether an attempt shows a problem. A slower hedge and a question for another program do not."""
    return attempt.outcome != "lost_race" and attempt.error != QuestionRejected.__name__


def describe(span: spans.Span, record: Record, *, content: bool) -> None:
    """Set the attributes of a run's span to its outcome, with texts if `content`."""
    if not span.is_recording():
        return
    span.set_attributes({spans.ROUNDS: record.rounds, spans.STATUS: record.status})
    if record.fallback:
        span.set_attribute(spans.FALLBACK, record.fallback)
    if (cost_usd := record.cost_usd) is not None:
        span.set_attribute(spans.COST_USD, float(cost_usd))
    if record.failure:
        words = words_in_span(record.failure, record.task.permit, content=content)
        spans.mark_failed(span, record.failure.code, words)


def log(records: RunRecords) -> None:
    """Log numbers and names of a run, as a warning if it failed or was lost. `records` are as stored, because
    error messages may quote prompts.
    """
    record = records.record
    used, cost_usd, began_s = record.usage, record.cost_usd, record.answer_began_s
    calls = record.calls
    fields = {
        "id": record.id,
        "model": record.model,
        "status": record.status,
        "plans": len(record.plans),
        "steps": len(record.steps),
        "workers": sorted({call.worker for call in calls}),
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_input_tokens": used.cached_input_tokens,
        "cost_usd": None if cost_usd is None else float(cost_usd),
        "cost_is_bound": record.cost_is_bound,
        "wall_s": round(record.wall_s, 4),
        "critical_path_s": round(record.critical_path_s, 4),
        "answer_began_s": None if began_s is None else round(began_s, 4),
        "fallback": record.fallback is not None,
        "rejected": [plan.reject_reason for plan in record.plans if plan.reject_reason],
        "error_type": record.failure.code if record.failure else None,
        "errors": faults(records),
        "trace_id": record.trace_id,
        "training": record.task.permit.trains,
        "cached_from": record.cached_from or None,
        "deployments": sorted({f"{call.worker}@{call.deployment}" for call in calls if call.deployment}),
        "key_id": record.account.key_id or None,
        "team_id": record.account.team_id or None,
    }
    level = logging.WARNING if record.status in ("failed", "lost") else logging.INFO
    logger.log(level, "workflow %s", record.status, extra={FIELDS: fields})


DAY_S = 86_400.0
TurnEnder = Callable[[RunRecords, RunRecords | None], Awaitable[None]]
"""Function that is called with the records of a run that has ended or is about to wait for tool results, and with their
stored form if the run has ended."""
PolicyFinder = Callable[[Account], Awaitable[Policies]]
"""Function that returns the current policies of an account."""


class RunExecutor:
    """Executor of the runs of one replica.

    Args:
        ledgers: ledgers of teams and keys, or None if runs are not billed.
        policies: function that returns an account's policies, or None if the server has no keys.
        end_turn: see `TurnEnder`.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        store: RecordStore,
        pools: Pools,
        admission: RunAdmission,
        ledgers: AccountLedgers | None,
        policies: PolicyFinder | None,
        meter: MeasurementSink | None,
        end_turn: TurnEnder,
    ) -> None:
        self._registry, self._store, self._pools, self._admission = registry, store, pools, admission
        self._ledgers, self._policies = ledgers, policies
        self._meter, self._end_turn = meter, end_turn

    @asynccontextmanager
    async def execute(self, spec: RunSpec, account: Account, leases: ExitStack) -> AsyncGenerator[Session]:
        """Execute a run inside its span until the end of the block, and store its record. Then close
        `leases`, its slot and memory.
        """
        id, task, pool = spec.id, spec.task, spec.pool
        stores = task.permit.stores
        texts = (task, spec.results, spec.cached, spec.resumed) if stores else ()
        redaction = redact_ahead(redactor_of(task.permit), account, *texts)
        with leases, self._registry.open(id) as session:
            async with self._pools.using(pool), redaction as redacted:
                execution: Execution | None = None
                journal = ContentJournal(task.permit, self._store.note, redacted)
                token = RUN_TEXTS.set(redacted if stores else None)
                try:
                    with spans.workflow(task.model, id, spec.headers) as span:
                        try:
                            ledger = await self._ledgers.of(account, id) if self._ledgers else None
                            opened = self._open(spec, account, ledger, spans.trace_id(span), journal.note)
                            async with opened as run:
                                spec.rate.is_owned = True
                                execution = Execution(run, spec, journal, leases)
                                session.execution = execution
                                yield session
                        finally:
                            if execution is not None:
                                content = pool.settings.telemetry.content
                                describe(span, execution.run.record, content=content)
                finally:
                    RUN_TEXTS.reset(token)
                    session.execution = None
                    if execution is not None:
                        await self._end(execution)

    def _open(
        self, spec: RunSpec, account: Account, ledger: Ledger | None, trace_id: str | None, journal: Journal
    ) -> AbstractAsyncContextManager[Run]:
        """Open a run: one with a cached answer, one that is resumed, or a new one."""
        owner = self._store.owner
        if spec.cached is not None:
            record = to_cached_record(spec.cached, spec.task, spec.id, account)
            return _replay(replace(record, owner=owner, trace_id=trace_id))
        if spec.resumed is not None:
            return resume_run(
                spec.team,
                spec.resumed,
                ledger=ledger,
                owner=owner,
                journal=journal,
                given=spec.results,
                write_down=self.suspend,
                paid_usd=spec.paid_usd,
            )
        return open_run(
            spec.team,
            spec.task,
            spec.id,
            ledger=ledger,
            trace_id=trace_id,
            owner=owner,
            account=account,
            journal=journal,
            write_down=self.suspend,
        )

    async def suspend(self, records: RunRecords) -> None:
        """Store a run that is about to wait for tool results. Implements `conductor.run.lifecycle.WriteDown`."""
        try:
            policies = await self.find_policies(records.record.account)
        except PodiumError:  # its key is no longer valid: no request will resume the run
            policies = UNLIMITED
        await self._store.suspend(records, _wait_s(self._pools.current.settings.store, policies))
        await self._end_turn(records, None)

    async def find_policies(self, account: Account) -> Policies:
        return await self._policies(account) if self._policies and account.key_id else UNLIMITED

    def report(self, records: RunRecords, stored_records: RunRecords, pool: Pool) -> None:
        """Log the stored form of a run that has ended, and count it in the metrics."""
        log(stored_records)
        report(self._meter, of_run(records, pool.providers))

    async def _end(self, execution: Execution) -> None:
        """Settle the rates of a run that has ended, and store it. Free its slot and its memory afterwards."""
        spec, records = execution.spec, execution.run.records
        try:
            if spec.rate.tokens:
                await self._admission.rates.settle(spec.rate, records)
            if records.record.status != "waiting":  # `suspend` has stored a run that waits
                stored_records = execution.journal.storable(records)
                await self._end_turn(records, stored_records)
                await self._store.put(stored_records)
                if spec.pool is self._pools.current:
                    # use the kept part, because its reasons appear in the log and in `/readyz`
                    self._pools.conductor_health.count(stored_records.record)
                self.report(records, stored_records, spec.pool)
        finally:
            execution.leases.close()


@asynccontextmanager
async def _replay(record: Record) -> AsyncGenerator[Run]:
    event_log = EventLog(record)
    event_log.replay()
    yield Run(event_log)


def _wait_s(settings: StoreSettings, policies: Policies) -> float:
    """Return the maximum seconds that a run may wait for tool results.

    Its texts are stored while it waits, so this is at most the retention of texts.
    """
    days = [each for each in (settings.content_days, policies.both.content_days) if each is not None]
    return min([settings.tools_wait_s, *(each * DAY_S for each in days)])
