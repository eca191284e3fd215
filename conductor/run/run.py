"""A run as its readers see it, and what its steps share."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conductor.model.call import AnswerFormat, Call, CallSite, Sampling
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import NO_TOOLS, Message, Toolset
from conductor.model.operation import CallKind
from conductor.model.terms import Terms
from conductor.model.worker import PoolMember
from conductor.run.event_log import EventLog, Subscription
from conductor.run.events import CallFailed, CallQueued, Event, Source
from conductor.run.ledger import Ledger
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task


class Run:
    """A run under way: its events as they come, and its record at any time."""

    def __init__(
        self, log: EventLog, earlier: Mapping[str, Record] | None = None, outer: "Run | None" = None
    ) -> None:
        self._log, self._earlier, self._outer = log, dict(earlier or {}), outer
        self._is_detached = False
        self._cancel: Callable[[], object] | None = None
        self.inner: list[Run] = []
        """The runs that its steps are, where they are; in the order they began."""
        self.why_left: Failure | None = None
        """Why its caller is gone, where it did not leave by itself: on record if the run is cancelled."""

    @property
    def record(self) -> Record:
        """As far as it has got."""
        return self._log.record

    @property
    def records(self) -> RunRecords:
        """Its own record, and those of the runs inside it."""
        inner = {record.id: record for run in self.inner for record in run.records}
        return RunRecords(self.record, self._earlier | inner)

    def cancel(self) -> None:
        """End it now, as leaving its block would: its readers get `RunCancelled`. One that has ended stays as
        it is.
        """
        if self._cancel is not None:
            self._cancel()

    def on_cancel(self, cancel: Callable[[], object]) -> None:
        """What `cancel` does; for who drives the run."""
        self._cancel = cancel

    def detach(self) -> None:
        """Leave the run to another process. From now on the end of its block closes the calls and appends
        `RunDetached` in place of `RunCancelled`, so that `resume_run` can continue it from `records`.
        """
        self._is_detached = True

    @property
    def is_detached(self) -> bool:
        """Whether it, or the run that it is a step of, is left to another process."""
        return self._is_detached or (self._outer is not None and self._outer.is_detached)

    def watch(self) -> None:
        """Somebody looks on: from now on its journal is told the conductor's and the steps' words as they come."""
        self._log.is_watched = True

    @property
    def answer(self) -> Subscription:
        """Everything, for the one who reads the answer; a slow reader slows the answering worker."""
        return self._log.answer

    def subscribe(
        self, after_seq: int | None = None, deltas: Literal["all", "none"] = "none"
    ) -> Subscription:
        """Events for one more reader, who holds nobody up; see `EventLog.subscribe`."""
        return self._log.subscribe(after_seq, deltas)

    async def events(self) -> AsyncGenerator[Event]:
        """Every event for the answer's reader in order, the terminal one last."""
        async for event in self.answer:
            yield event


UNPLANNED: tuple[Source, ...] = ("client", "workflow", "worker")
"""Of plans for which no model was called."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the steps of a run share.

    Args:
        task: what was asked for.
        pool: the members this request may use, by name, in the order the conductor sees them.
        ledger: the run's spending.
        log: the run's events.
        now_s: seconds since the run began.
        terms: of the run's calls.
    """

    task: Task
    pool: Mapping[str, PoolMember]
    ledger: Ledger
    log: EventLog
    now_s: Callable[[], float]
    terms: Terms

    def site(
        self,
        plan: int,
        step: int | None = None,
        access: tuple[int, ...] = (),
        operation: CallKind = "chat",
    ) -> CallSite:
        """Which call of this run it is; see `CallSite`."""
        record = self.log.record
        made = 0 if step is None else len(record.plans[plan].steps[step].cut)
        return CallSite(record.id, plan, step, access, attempt=made + 1, operation=operation)

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
        """A call of this run, which says where it is long in coming."""
        plan = self.log.record.plans[site.plan]
        worker = (plan.worker if site.step is None else plan.steps[site.step].worker) or ""
        observer = CallObserver(self, site, worker)
        terms = replace(self.terms, observer=observer, begins=self._begins(plan, site))
        return Call(
            messages,
            sampling,
            coalesce=coalesce,
            site=site,
            tools=tools,
            answer_format=answer_format,
            terms=terms,
        )

    def _begins(self, plan: PlanRecord, site: CallSite) -> bool:
        """Whether no call was made before: of this run, or of one that it is a part of."""
        record = self.log.record
        if record.parent is not None or site.plan > 0 or record.calls:
            return False
        has_begun = any(step.started_s is not None or step.cut for step in plan.steps)
        return site.step is None or (plan.source in UNPLANNED and not has_begun)


@dataclass(frozen=True, slots=True)
class CallObserver:
    """Puts what happens to a call on record. See `conductor.model.terms.Observer`."""

    _context: RunContext
    _site: CallSite
    _worker: str

    def on_queued(self, why: str) -> None:
        """See `Observer.on_queued`."""
        at_s = self._context.now_s()
        self._context.log.append(CallQueued(at_s, self._site.plan, self._site.step, self._worker, why))

    def on_failed(self, attempt: Attempt) -> None:
        """See `Observer.on_failed`."""
        at_s = self._context.now_s()
        self._context.log.append(CallFailed(at_s, self._site.plan, self._site.step, attempt))
