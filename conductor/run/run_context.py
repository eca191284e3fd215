"""What the steps of a run, and the writing of its plans, share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conductor.model.answer_format import AnswerFormat
from conductor.model.call import Call, CallSite, Sampling
from conductor.model.failure import Attempt
from conductor.model.field_values import copy_with
from conductor.model.messages import Message
from conductor.model.operation import CallKind
from conductor.model.pool_member import PoolMember
from conductor.model.terms import Terms
from conductor.model.tools import NO_TOOLS, Toolset
from conductor.run.event_log import EventLog
from conductor.run.events import CallFailed, CallQueued, Source
from conductor.run.ledger import Ledger
from conductor.run.plan_record import PlanRecord
from conductor.run.task import Task

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
        terms = copy_with(self.terms, observer=observer, begins=self._begins(plan, site))
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
