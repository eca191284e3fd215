"""Events of a run.

Events name their plan and step by number. Each text of a plan has its own number: a repair and each further round
get the next one. Exactly one terminal event ends a run, or the part of it that one process executed. `fold.py`
computes the record from the events. Times are seconds since the run began, without the gap between its end in one
process and its continuation in another.
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
from conductor.run.turns import ClientReply

Source = Literal[
    "conductor", "repair", "revision", "client", "workflow", "worker", "fallback", "conversation"
]
"""Author of a plan.

- `conductor`: the conductor wrote it first.
- `repair`: the conductor wrote it after its plan was rejected.
- `revision`: the conductor wrote it after it had read the outcome of the previous round.
- `client`: the request contains it.
- `workflow`: the settings contain it.
- `worker`: no author. The request passes straight to one worker.
- `fallback`: no author. Planning failed, and one worker answers alone.
- `conversation`: no author. The worker of the conversation's last answer answers again.
"""


class PlanStarted(Value, frozen=True):
    """The start of a plan's text."""

    at_s: float
    plan: int
    round: int
    source: Source
    worker: str | None = None
    prompt: tuple[Message, ...] = ()


class StepPlanned(Value, frozen=True):
    """A complete step in the plan's text."""

    at_s: float
    plan: int
    step: int
    planned: Step


class PlanEnded(Value, frozen=True):
    """The end of a plan's text: the plan runs, is rejected, or accepts the previous answer."""

    at_s: float
    plan: int
    result: CallResult | None = None
    """The conductor's call, or None if no model wrote the plan."""
    accepted: bool = False
    rejection: Failure | None = None
    """Failure with the reason why the plan cannot run. Its code is `InvalidPlan`."""
    failure: Failure | None = None
    """The conductor's error while it wrote the plan."""
    why: str = ""
    stopped: bool = False
    """True if the run ended while the plan was being written."""

    @property
    def reject_reason(self) -> Reason | None:
        return None if self.rejection is None else self.rejection.reason


class CallQueued(Value, frozen=True):
    """A delay of a call's first token that is not a failure, such as a queue."""

    at_s: float
    plan: int
    step: int | None
    """None for the conductor's call."""
    worker: str
    why: str


class CallFailed(Value, frozen=True):
    """A failed attempt at a call. Either the same worker is called again, or the call fails over to another one."""

    at_s: float
    plan: int
    step: int | None
    """None for the conductor's call."""
    attempt: Attempt


class StepStarted(Value, frozen=True):
    """The start of a call to a worker."""

    at_s: float
    plan: int
    step: int
    prompt: tuple[Message, ...]


class StepRestarted(Value, frozen=True):
    """The restart of a step whose answer was interrupted.

    Either the client had received no part of the answer, or the run outlives its readers and no worker could
    continue the answer. `result` is the result of the interrupted call, with its usage and cost, or None if it
    had no reply.
    """

    at_s: float
    plan: int
    step: int
    failure: Failure
    result: CallResult | None


class StepContinued(Value, frozen=True):
    """Continuation of the answering step whose stream was interrupted. `result` has the text, usage and cost."""

    at_s: float
    plan: int
    step: int
    failure: Failure
    result: CallResult


class StepFirstToken(Value, frozen=True):
    at_s: float
    plan: int
    step: int
    served_by: str
    """The worker that answers: the planned worker, or the one that the call failed over to."""


class StepFinished(Value, frozen=True):
    """A worker's complete answer."""

    at_s: float
    plan: int
    step: int
    result: CallResult


class StepWaits(Value, frozen=True):
    """Tool calls by a worker. The step continues once their results arrive."""

    at_s: float
    plan: int
    step: int
    result: CallResult
    calls: tuple[PendingCall, ...]


class StepReused(Value, frozen=True):
    """The reuse of an equal step's output from an earlier plan whose text was interrupted. No worker was called."""

    at_s: float
    plan: int
    step: int
    from_plan: int


class StepOutcome(StrEnum):
    """Reason why a step has no output."""

    FAILED = "failed"
    NOT_NEEDED = "not_needed"
    """The last step does not depend on it."""
    CANCELLED = "cancelled"
    """Its plan was rejected, another step failed, or the client disconnected."""


class StepAborted(Value, frozen=True):
    """The end of a step without an output. `result` has the usage and cost so far, if there are any."""

    at_s: float
    plan: int
    step: int
    outcome: StepOutcome
    failure: Failure | None = None
    result: CallResult | None = None


class AnswerDelta(Value, frozen=True):
    """Next piece of the answer, shown to the user."""

    at_s: float
    text: str
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class WorkDelta(Value, frozen=True):
    """Next piece of text from the conductor, or from a step that is not the answering step.

    It is sent only to the journal, while a viewer wants it (`EventLog.is_watched`). The first piece contains all
    text so far. The text is not recorded.
    """

    at_s: float
    plan: int
    step: int | None
    """None for the plan's text."""
    text: str
    reasoning: str = ""


class RunResumed(DefaultingValue, frozen=True):
    """Continuation in another process. Open calls are lost, completed ones keep their results. `lost_usd` was
    paid for calls without a recorded end.
    """

    at_s: float
    owner: str = ""
    lost_usd: Decimal = Decimal(0)


class RunDetached(Value, frozen=True):
    """Handover to another process, terminal for readers here. Open calls are cut, completed ones keep their
    results.
    """

    at_s: float


class RunFinished(Value, frozen=True):
    """The complete answer. Terminal."""

    at_s: float
    answer: str
    finish: FinishReason


class RunSuspended(DefaultingValue, frozen=True):
    """The suspension of a run that waits for tool results. No call to a model is open. Terminal.

    Args:
        clock: Unix time of the suspension, or 0 if it was not recorded.
    """

    at_s: float
    calls: tuple[PendingCall, ...]
    text: str = ""
    clock: float = 0.0


class ResultsGiven(DefaultingValue, frozen=True):
    """Arrival of tool results, `waited_s` after the client got the calls. Maybe in another process."""

    at_s: float
    given: ClientReply
    owner: str = ""
    waited_s: float = 0.0


class RunFailed(Value, frozen=True):
    """The failure of the run. The answer is missing or incomplete. Terminal."""

    at_s: float
    failure: Failure


class RunCancelled(Value, frozen=True):
    """The cancellation of the run. All open calls were closed. Terminal."""

    at_s: float
    failure: Failure | None = None
    """Cause of the cancellation. None if the client disconnected."""


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
"""Events that are numbered and stored: all except pieces of text."""
Piece = AnswerDelta | WorkDelta
Event = KeptEvent | Piece
Terminal = RunFinished | RunSuspended | RunFailed | RunCancelled | RunDetached
"""Events that end a reader's stream."""
