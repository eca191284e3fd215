"""What happens during a run, as it happens.

Events are numbered by the plan and the step they belong to: every plan text that was written is a plan of
its own, so a repair and each further round count up. Exactly one terminal event ends a run, or the part of
it that one process made. `fold.py` folds events into the record. Times are seconds since the run began,
without the time between its end in one process and its continuation in another.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Literal

from conductor.errors import Reason
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import Message, PendingCall
from conductor.model.operation import TokenLogprob
from conductor.model.reply import CallResult, FinishReason
from conductor.model.value import DefaultingValue, Value
from conductor.plan.plan import Step
from conductor.run.turns import Given

Source = Literal["conductor", "repair", "revision", "client", "workflow", "worker", "fallback"]
"""Who wrote a plan: the conductor (at first, after a complaint, after reading the outcome), the caller, the
settings, nobody (plain pass-through to a worker), or nobody because no plan could be had."""


class PlanStarted(Value, frozen=True):
    """A plan is being written."""

    at_s: float
    plan: int
    round: int
    source: Source
    worker: str | None = None
    prompt: tuple[Message, ...] = ()


class StepPlanned(Value, frozen=True):
    """A step's last byte is there."""

    at_s: float
    plan: int
    step: int
    planned: Step


class PlanEnded(Value, frozen=True):
    """A plan's text has ended: it runs, it accepts the answer before, or it is rejected and says why."""

    at_s: float
    plan: int
    result: CallResult | None = None
    """The conductor's call; None where no model wrote the plan."""
    accepted: bool = False
    rejection: Failure | None = None
    """Why it cannot run; its code is `InvalidPlan`."""
    failure: Failure | None = None
    """The conductor failed while it wrote."""
    why: str = ""
    stopped: bool = False
    """The run ended while it was written."""

    @property
    def reject_reason(self) -> Reason | None:
        """The reason of the rejection."""
        return reason_of(self.rejection)


class CallQueued(Value, frozen=True):
    """A call's first token will be delayed, for a reason that is nobody's failure."""

    at_s: float
    plan: int
    step: int | None
    """None: the conductor's."""
    worker: str
    why: str


class CallFailed(Value, frozen=True):
    """A call gave no answer, and its worker or another is asked again."""

    at_s: float
    plan: int
    step: int | None
    """None: the conductor's."""
    attempt: Attempt


class StepStarted(Value, frozen=True):
    """A worker is being called."""

    at_s: float
    plan: int
    step: int
    prompt: tuple[Message, ...]


class StepRestarted(Value, frozen=True):
    """A worker's answer broke off before any of it was shown, or nobody goes on with it in a run that outlives its
    readers; its step begins again. `result` holds what was consumed by then; None: the call that failed said nothing.
    """

    at_s: float
    plan: int
    step: int
    failure: Failure
    result: CallResult | None


class StepContinued(Value, frozen=True):
    """The answering step's words broke off after some were shown; it goes on from there. `result` holds them, and
    what was consumed by then.
    """

    at_s: float
    plan: int
    step: int
    failure: Failure
    result: CallResult


class StepFirstToken(Value, frozen=True):
    """A worker's first token is there."""

    at_s: float
    plan: int
    step: int
    served_by: str
    """Who answers: the worker that was planned, or the one it failed over to."""


class StepFinished(Value, frozen=True):
    """A worker has answered."""

    at_s: float
    plan: int
    step: int
    result: CallResult


class StepWaits(Value, frozen=True):
    """A worker has called tools: its step goes on once their results are there."""

    at_s: float
    plan: int
    step: int
    result: CallResult
    calls: tuple[PendingCall, ...]


class StepReused(Value, frozen=True):
    """A step has the output of an equal step, of a plan whose writing was interrupted. No worker was
    called.
    """

    at_s: float
    plan: int
    step: int
    from_plan: int


class StepOutcome(StrEnum):
    """Why a step has no output."""

    FAILED = "failed"
    NOT_NEEDED = "not_needed"
    """The last step does not reach it."""
    CANCELLED = "cancelled"
    """Its plan was rejected, another step failed, or the caller left."""


class StepAborted(Value, frozen=True):
    """A step ended without an output. `result` holds what was consumed by then, where something was."""

    at_s: float
    plan: int
    step: int
    outcome: StepOutcome
    failure: Failure | None = None
    result: CallResult | None = None


class AnswerDelta(Value, frozen=True):
    """The next piece of the answer. Shown to the user."""

    at_s: float
    text: str
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class WorkDelta(Value, frozen=True):
    """The next piece of what the conductor or an inner step says; only while somebody watches (`EventLog.is_watched`),
    the first with all that was said by then. For who looks on: no reader of the run gets it, and no record has it.
    """

    at_s: float
    plan: int
    step: int | None
    """None: it is the plan's text."""
    text: str
    reasoning: str = ""


class RunResumed(DefaultingValue, frozen=True):
    """Another process continues the run. Calls that were open are lost; what had ended stays as it is.

    Args:
        lost_usd: what was paid, by all processes before, for calls whose ends they did not write down.
    """

    at_s: float
    owner: str = ""
    lost_usd: Decimal = Decimal(0)


class RunDetached(Value, frozen=True):
    """The process leaves the run to another one. Its open calls are closed and on record as cut; what had
    ended stays as it is. Terminal for the readers in this process only.
    """

    at_s: float


class RunFinished(Value, frozen=True):
    """The answer is complete. Terminal."""

    at_s: float
    answer: str
    finish: FinishReason


class RunSuspended(DefaultingValue, frozen=True):
    """The run waits for results of tools: all of it is in its record, and no call is open. Terminal.

    Args:
        calls: those whose results are not there yet, in the order of their numbers.
        text: that was shown of the answer with them.
        clock: Unix time; 0: not on record.
    """

    at_s: float
    calls: tuple[PendingCall, ...]
    text: str = ""
    clock: float = 0.0


class ResultsGiven(DefaultingValue, frozen=True):
    """The client has sent results of tools, `waited_s` after it was told of their calls: the run goes on, perhaps
    in another process.
    """

    at_s: float
    given: Given
    owner: str = ""
    waited_s: float = 0.0


class RunFailed(Value, frozen=True):
    """There is no answer, or not all of it. Terminal."""

    at_s: float
    failure: Failure


class RunCancelled(Value, frozen=True):
    """The caller left, and everything under way was closed. Terminal."""

    at_s: float
    failure: Failure | None = None
    """Why, where it did not leave by itself."""


KeptEvent = (
    PlanStarted
    | StepPlanned
    | PlanEnded
    | CallQueued
    | CallFailed
    | StepStarted
    | StepFirstToken
    | StepRestarted
    | StepContinued
    | StepFinished
    | StepWaits
    | StepReused
    | StepAborted
    | RunResumed
    | RunDetached
    | RunFinished
    | RunSuspended
    | ResultsGiven
    | RunFailed
    | RunCancelled
)
"""Events that are numbered and kept: all but pieces of texts."""
Piece = AnswerDelta | WorkDelta
Event = KeptEvent | Piece
Terminal = RunFinished | RunSuspended | RunFailed | RunCancelled | RunDetached
"""Events after which a reader gets no more."""


def reason_of(rejection: Failure | None) -> Reason | None:
    """Why a plan was rejected; None where it was not."""
    return None if rejection is None else Reason(str(rejection.get("reason")))
