"""The record of a run: one value that the response, the log line, the store, evaluation and reward all read.

It is a fold over the run's events, so it can be read at any time, also while the run goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from conductor.errors import PodiumError, Reason
from conductor.model.messages import Message
from conductor.model.usage import Usage, total
from conductor.model.worker import FinishReason
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    CallResult,
    Event,
    PlanEnded,
    PlanStarted,
    RunFailed,
    RunFinished,
    Source,
    StepAborted,
    StepFinished,
    StepFirstToken,
    StepPlanned,
    StepStarted,
)

StepStatus = Literal["planned", "running", "done", "failed", "not_needed", "cancelled"]
RunStatus = Literal["running", "finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. Times are seconds since the run began; None where it did not come to that."""

    index: int
    worker: str
    subtask: str
    access: tuple[int, ...]
    planned_s: float
    status: StepStatus = "planned"
    prompt: tuple[Message, ...] = ()
    answered: CallResult | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    served_by: str | None = None
    """Who answers, from the first token on: `worker`, or the one it failed over to."""
    ended_s: float | None = None
    error: PodiumError | None = None


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One plan text and what became of it."""

    index: int
    round: int
    source: Source
    started_s: float
    worker: str | None = None
    prompt: tuple[Message, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    answered: CallResult | None = None
    """The conductor's call; None where no model wrote the plan."""
    ended_s: float | None = None
    accepted: bool = False
    """The text kept the answer of the round before."""
    rejected: Reason | None = None
    error: PodiumError | None = None
    why: str = ""
    """Why it was refused, or why it is a fallback."""


@dataclass(frozen=True, slots=True)
class Record:
    """All of a run."""

    id: str
    model: str
    created: float
    """Unix time."""
    status: RunStatus = "running"
    plans: tuple[PlanRecord, ...] = ()
    answer: str = ""
    """The whole of it; empty where it did not come to that (what was said by then is in the steps)."""
    finish: FinishReason | None = None
    error: PodiumError | None = None
    wall_s: float = 0.0
    answer_began_s: float | None = None
    """When the answer's first piece was there for the reader; seconds since the run began."""
    max_cost_usd: Decimal | None = None
    """What it was allowed to cost, where the caller or the settings said so."""
    trace_id: str | None = None

    def after(self, event: Event) -> "Record":
        """The record once `event` has happened."""
        match event:
            case PlanStarted():
                plan = PlanRecord(
                    event.plan, event.round, event.source, event.at_s, event.worker, event.prompt
                )
                return replace(self, plans=(*self.plans, plan))
            case CallQueued():
                return self  # it shows in the times
            case AnswerDelta():  # its text is kept once, at the end: see `Finished`
                return self if self.answer_began_s is not None else replace(self, answer_began_s=event.at_s)
            case RunFinished():
                return replace(
                    self, status="finished", answer=event.answer, finish=event.finish, wall_s=event.at_s
                )
            case RunFailed():
                return replace(self, status="failed", error=event.error, wall_s=event.at_s)
            case _:
                plans = list(self.plans)
                plans[event.plan] = _plan_after(plans[event.plan], event)
                return replace(self, plans=tuple(plans))

    @property
    def rounds(self) -> int:
        """How many rounds were begun."""
        return max((plan.round + 1 for plan in self.plans), default=0)

    @property
    def fallback(self) -> str | None:
        """Why one worker answered by itself; None where a plan was run."""
        return next((plan.why for plan in self.plans if plan.source == "fallback"), None)

    @property
    def answering_plan(self) -> PlanRecord | None:
        """The plan whose last step is the answer: the newest one that gave one, or else that runs."""
        runs = [plan for plan in self.plans if plan.steps and plan.rejected is None and plan.error is None]
        answered = [plan for plan in runs if plan.steps[-1].status == "done"]
        return (answered or runs or [None])[-1]

    @property
    def answering(self) -> CallResult | None:
        """The call whose output is the answer."""
        plan = self.answering_plan
        return plan.steps[-1].answered if plan else None

    @property
    def calls(self) -> list[CallResult]:
        """Every call that consumed something, plans included."""
        plans = [plan.answered for plan in self.plans if plan.answered]
        return plans + [step.answered for plan in self.plans for step in plan.steps if step.answered]

    @property
    def cost_usd(self) -> Decimal | None:
        """All of it; None where one call's cost is unknown."""
        return total([call.cost_usd for call in self.calls])

    @property
    def unmetered_calls(self) -> int:
        """Calls whose tokens nobody told: their streams were cut before the server said. Their tokens are in no sum."""
        told_nothing = sum(call.usage is None for call in self.calls)
        steps = [step for plan in self.plans for step in plan.steps]
        unanswered = [
            s for s in steps if s.started_s is not None and s.answered is None and s.status != "failed"
        ]
        return told_nothing + sum(step.status in ("cancelled", "not_needed") for step in unanswered)

    @property
    def orchestration(self) -> Usage:
        """Tokens of every call but the answering one."""
        answering = self.answering
        return sum((call.usage for call in self.calls if call.usage and call is not answering), Usage())

    @property
    def critical_path_s(self) -> float:
        """How long the run would have taken had every step begun the moment it could.

        A step can begin once it is written and what it reads is there; the longest such chain through the answering plan.
        """
        plan = self.answering_plan
        if plan is None:
            return self.wall_s
        ends: list[float] = []
        for step in plan.steps:
            ready = max([step.planned_s, *(ends[read] for read in step.access)])
            took = 0.0 if step.started_s is None or step.ended_s is None else step.ended_s - step.started_s
            ends.append(ready + took)
        decided = [other.ended_s or 0.0 for other in self.plans if other.accepted]
        return max([ends[-1], *decided])


def _plan_after(plan: PlanRecord, event: Event) -> PlanRecord:
    match event:
        case PlanEnded():
            return replace(
                plan, answered=event.answered, ended_s=event.at_s, accepted=event.accepted,
                rejected=event.rejected, error=event.error, why=event.why or plan.why,
            )  # fmt: skip
        case StepPlanned(planned=step):
            written = StepRecord(event.step, step.worker, step.subtask, step.access, event.at_s)
            return replace(plan, steps=(*plan.steps, written))
        case StepStarted() | StepFirstToken() | StepFinished() | StepAborted():
            steps = list(plan.steps)
            steps[event.step] = _step_after(steps[event.step], event)
            return replace(plan, steps=tuple(steps))
        case _:
            return plan


def _step_after(
    step: StepRecord, event: StepStarted | StepFirstToken | StepFinished | StepAborted
) -> StepRecord:
    match event:
        case StepStarted():
            return replace(step, status="running", prompt=event.prompt, started_s=event.at_s)
        case StepFirstToken():
            return replace(step, first_token_s=event.at_s, served_by=event.served_by)
        case StepFinished():
            return replace(step, status="done", answered=event.answered, ended_s=event.at_s)
        case StepAborted():
            return replace(
                step, status=event.loss.value, answered=event.answered, error=event.error, ended_s=event.at_s
            )  # fmt: skip


def fold(record: Record, events: Iterable[Event]) -> Record:
    """`record` after all of `events`."""
    for event in events:
        record = record.after(event)
    return record
