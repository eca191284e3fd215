"""What the steps of a run, and the writing of its plans, share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from conductor.model.answer_format import AnswerFormat
from conductor.model.call import Call, CallSite, Sampling
from conductor.model.failure import Attempt
from conductor.model.messages import Message
from conductor.model.operation import CallKind
from conductor.model.pool_member import PoolMember
from conductor.model.refusals import Refusals
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
        deadline_at_s: when the caller's time is over, by `time.monotonic`; None: no deadline.
        refusals: what workers have refused so far.
    """

    task: Task
    pool: Mapping[str, PoolMember]
    ledger: Ledger
    log: EventLog
    now_s: Callable[[], float]
    deadline_at_s: float | None
    refusals: Refusals

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

        def on_queued(why: str) -> None:
            self.log.append(CallQueued(self.now_s(), site.plan, site.step, worker, why))

        def on_failed(attempt: Attempt) -> None:
            self.log.append(CallFailed(self.now_s(), site.plan, site.step, attempt))

        plan = self.log.record.plans[site.plan]
        worker = (plan.worker if site.step is None else plan.steps[site.step].worker) or ""
        call = self.silent_call(messages, site, sampling, coalesce=coalesce)
        return replace(
            call,
            tools=tools,
            answer_format=answer_format,
            on_queued=on_queued,
            on_failed=on_failed,
            begins=self._begins(plan, site),
        )

    def _begins(self, plan: PlanRecord, site: CallSite) -> bool:
        """Whether no call was made before: of this run, or of one that it is a part of."""
        record = self.log.record
        if record.parent is not None or site.plan > 0 or record.calls:
            return False
        has_begun = any(step.started_s is not None or step.cut for step in plan.steps)
        return site.step is None or (plan.source in UNPLANNED and not has_begun)

    def silent_call(
        self, messages: tuple[Message, ...], site: CallSite, sampling: Sampling, *, coalesce: bool
    ) -> Call:
        """Likewise, of which nothing is put on record by itself."""
        return Call(
            messages,
            sampling,
            coalesce=coalesce,
            site=site,
            deadline_at_s=self.deadline_at_s,
            refusals=self.refusals,
            permit=self.task.permit,
            priority=self.task.priority,
            payer=self.log.record.account.key_id,
            team=self.log.record.account.team_id,
        )
