"""What happens to a call that is made before its plan is there (`guess.py`). Events like those of `events.py`."""

from dataclasses import dataclass
from typing import Literal

from conductor.model.failure import Attempt
from conductor.model.messages import Message

GuessOutcome = Literal["kept", "lost", "failed", "cut"]
"""`kept`: the plan's first step asked for the same call and has it; `lost`: it asked for another, could not run, or was not
there in time; `failed`: it had failed by then; `cut`: nobody can say, since the plan was broken off, or its process ended."""


@dataclass(frozen=True, slots=True)
class GuessStarted:
    """A worker is called while the plan is being written, because the plan will probably ask it the same."""

    at_s: float
    plan: int
    worker: str
    prompt: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class GuessEnded:
    """The plan's first step has that call, or the call is closed. `attempt`, where it was not kept: what it took; `failed`: the
    calls before it, whose worker or deployment it failed over from.
    """

    at_s: float
    plan: int
    outcome: GuessOutcome
    attempt: Attempt | None = None
    failed: tuple[Attempt, ...] = ()
