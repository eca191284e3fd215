"""What happens during a run, as it happens.

Events are numbered by the plan and the step they belong to: every plan text that was written is a plan of its own, so a repair
and each further round count up. Exactly one terminal event ends a run: `Finished` or `Failed`. `record.py` folds events into
the record. Times are seconds since the run began.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from conductor.errors import PodiumError, Reason
from conductor.model.messages import Message
from conductor.model.usage import Usage
from conductor.model.worker import Attempt, FinishReason
from conductor.plan.plan import Step

Source = Literal["conductor", "repair", "revision", "client", "workflow", "worker", "fallback"]
"""Who wrote a plan: the conductor (at first, after a complaint, after reading the outcome), the caller, the settings, nobody
(plain pass-through to a worker), or nobody because no plan could be had."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one call to a model gave and took."""

    output: str
    served_by: str
    model: str
    usage: Usage | None
    cost_usd: Decimal | None
    finish: FinishReason | None
    attempts: tuple[Attempt, ...] = ()
    reasoning: str = ""
    inner: object | None = None
    """The record of the run that answered, where the worker is a team itself."""
    notes: tuple[str, ...] = ()
    """What was changed in the call or not believed of the answer, one sentence each."""


@dataclass(frozen=True, slots=True)
class PlanStarted:
    """A plan is being written."""

    at_s: float
    plan: int
    round: int
    source: Source
    worker: str | None = None
    prompt: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlanned:
    """A step's last byte is there."""

    at_s: float
    plan: int
    step: int
    planned: Step


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """A plan's text has ended: it runs, it accepts the answer before, or it is refused and says why."""

    at_s: float
    plan: int
    answered: CallResult | None = None
    accepted: bool = False
    rejected: Reason | None = None
    error: PodiumError | None = None
    """The conductor failed while it wrote."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class CallQueued:
    """A call will be long in coming, for a reason that is nobody's failure."""

    at_s: float
    plan: int
    step: int | None
    """None: the conductor's."""
    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A worker is being called."""

    at_s: float
    plan: int
    step: int
    prompt: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class StepFirstToken:
    """A worker's first token is there."""

    at_s: float
    plan: int
    step: int
    served_by: str
    """Who speaks: the worker that was planned, or the one it failed over to."""


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A worker has answered."""

    at_s: float
    plan: int
    step: int
    answered: CallResult


class StepOutcome(StrEnum):
    """Why a step has no output."""

    FAILED = "failed"
    NOT_NEEDED = "not_needed"
    """The last step does not reach it."""
    CANCELLED = "cancelled"
    """Its plan was refused, another step failed, or the caller left."""


@dataclass(frozen=True, slots=True)
class StepAborted:
    """A step ended without an output. `answered` holds what was consumed by then, where something was."""

    at_s: float
    plan: int
    step: int
    loss: StepOutcome
    error: PodiumError | None = None
    answered: CallResult | None = None


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """The next piece of the answer. Shown to the user."""

    at_s: float
    text: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The answer is complete. Terminal."""

    at_s: float
    answer: str
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class RunFailed:
    """There is no answer, or not all of it. Terminal."""

    at_s: float
    error: PodiumError


Event = (
    PlanStarted
    | StepPlanned
    | PlanEnded
    | CallQueued
    | StepStarted
    | StepFirstToken
    | StepFinished
    | StepAborted
    | AnswerDelta
    | RunFinished
    | RunFailed
)
Terminal = RunFinished | RunFailed
