"""An active run as its readers use it, the context of its steps, and waiting for tasks to end."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from conductor.model.call import AnswerFormat, Call, CallSite, Sampling
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import NO_TOOLS, Message, Toolset
from conductor.model.operation import CallKind
from conductor.model.terms import Terms
from conductor.model.worker import PoolMember
from conductor.run.event_log import EventLog, Subscription
from conductor.run.events import CallFailed, CallQueued, Event, Source
from conductor.run.follow_up import FollowUp
from conductor.run.ledger import Ledger
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import StepTurn


class Run:
    """An active run: its events as they come, and its record at any time."""

    def __init__(
        self, log: EventLog, earlier: Mapping[str, Record] | None = None, outer: "Run | None" = None
    ) -> None:
        self._log, self._earlier, self._outer = log, dict(earlier or {}), outer
        self._is_detached = False
        self._cancel: Callable[[], object] | None = None
        self.inner: list[Run] = []
        """Inner runs that execute steps of this run, oldest first."""
        self.why_left: Failure | None = None
        """Why the run lost its caller, or None for a disconnect. It is recorded if the run is cancelled."""

    @property
    def record(self) -> Record:
        return self._log.record

    @property
    def records(self) -> RunRecords:
        inner = {record.id: record for run in self.inner for record in run.records}
        return RunRecords(self.record, self._earlier | inner)

    def cancel(self) -> None:
        """Cancel the run, as leaving its block does, unless it has ended. Readers receive `RunCancelled`."""
        if self._cancel is not None:
            self._cancel()

    def on_cancel(self, cancel: Callable[[], object]) -> None:
        """Set the function that `cancel` calls. The driver of the run calls this."""
        self._cancel = cancel

    def detach(self) -> None:
        """Hand the run over. At the block's end, calls are closed, and readers get `RunDetached`.
        `resume_run` then continues from `records`.
        """
        self._is_detached = True

    @property
    def is_detached(self) -> bool:
        """True if the run, or its outer run, is handed over to another process."""
        return self._is_detached or (self._outer is not None and self._outer.is_detached)

    def watch(self) -> None:
        """Send the text of the conductor and the steps to the journal from now on."""
        self._log.is_watched = True

    @property
    def answer(self) -> Subscription:
        """All events, for the reader of the answer. A slow reader slows down the worker that writes the answer."""
        return self._log.answer

    def subscribe(
        self, after_seq: int | None = None, deltas: Literal["all", "none"] = "none"
    ) -> Subscription:
        """Subscribe another reader. It does not slow down the run. See `EventLog.subscribe`."""
        return self._log.subscribe(after_seq, deltas)

    async def events(self) -> AsyncGenerator[Event]:
        """Yield all events to the reader of the answer. The terminal event is the last one."""
        async for event in self.answer:
            yield event


UNPLANNED: tuple[Source, ...] = ("client", "workflow", "worker", "conversation")
"""Sources of plans that no model wrote."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Context that the steps of a run share. `pool` has the request's workers in the conductor's order, `now_s`
    returns the seconds since the run began. For `follow_up` and `earlier_turns`, see `Team`.
    """

    task: Task
    pool: Mapping[str, PoolMember]
    ledger: Ledger
    log: EventLog
    now_s: Callable[[], float]
    terms: Terms
    follow_up: FollowUp | None = None
    earlier_turns: Mapping[str, StepTurn] = field(default_factory=dict[str, StepTurn])

    def site(
        self, plan: int, step: int | None = None, access: tuple[int, ...] = (), operation: CallKind = "chat"
    ) -> CallSite:
        """Return the position of a call in this run. See `CallSite`."""
        record = self.log.record
        cut = 0 if step is None else len(record.plans[plan].steps[step].cut)
        return CallSite(record.id, plan, step, access, attempt=cut + 1, operation=operation)

    def call(
        self,
        messages: tuple[Message, ...],
        site: CallSite,
        sampling: Sampling,
        *,
        coalesce: bool = False,
        tools: Toolset = NO_TOOLS,
        answer_format: AnswerFormat | None = None,
    ) -> Call:
        """Return a call of this run. Its observer records delays and failed attempts as events."""
        plan = self.log.record.plans[site.plan]
        worker = (plan.worker if site.step is None else plan.steps[site.step].worker) or ""
        observer = CallObserver(self, site, worker)
        terms = replace(
            self.terms, observer=observer, is_first_paid_call=self._is_first_paid_call(plan, site)
        )
        return Call(
            messages,
            sampling,
            coalesce=coalesce,
            site=site,
            tools=tools,
            answer_format=answer_format,
            terms=terms,
        )

    def _is_first_paid_call(self, plan: PlanRecord, site: CallSite) -> bool:
        """Return whether the call is the first one of a run that is not an inner run."""
        record = self.log.record
        if record.parent is not None or site.plan > 0 or record.calls:
            return False
        has_begun = any(step.started_s is not None or step.cut for step in plan.steps)
        return site.step is None or (plan.source in UNPLANNED and not has_begun)


@dataclass(frozen=True, slots=True)
class CallObserver:
    """Records the delays and failed attempts of a call as events. Implements `conductor.model.terms.Observer`."""

    _context: RunContext
    _site: CallSite
    _worker: str

    def on_queued(self, why: str) -> None:
        at_s = self._context.now_s()
        self._context.log.append(CallQueued(at_s, self._site.plan, self._site.step, self._worker, why))

    def on_failed(self, attempt: Attempt) -> None:
        at_s = self._context.now_s()
        self._context.log.append(CallFailed(at_s, self._site.plan, self._site.step, attempt))


async def wait_until_done(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until `tasks` end, even if cancelled, because they may be closing calls. Raise the cancellation
    then.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled:
        raise cancelled


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel an endless task, if any, wait for it, and raise its error if it failed."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
