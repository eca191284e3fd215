"""Conditions under which a call is made: never sent, and the same for every attempt at it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from conductor.model.failure import Attempt
from conductor.model.holds import Holds
from conductor.model.pauses import Pauses
from conductor.model.permit import ANYTHING, Permit
from conductor.model.places import Places
from conductor.model.priority import Priority
from conductor.model.refusals import Refusals


class Observer(Protocol):
    """Receives what happens to a call before its first token."""

    def on_queued(self, why: str) -> None:
        """Record that the first token will be late, for example during a cold start."""
        ...

    def on_failed(self, attempt: Attempt) -> None:
        """Record an attempt that failed and is followed by another one."""
        ...


@dataclass(slots=True, eq=False)
class AttemptLimits:
    """How long a worker may be silent in one attempt, and where the attempts of this call have gone."""

    first_token_s: float | None = None
    """Usual limit for the first token, in seconds. None: only the settings limit it."""
    patience_s: float | None = None
    """Limit for the first token whatever is usual, because a fallback needs the rest of the time. None: no limit."""
    pauses: Pauses | None = None
    """Pauses between the words of the answer. None: not measured."""
    places: Places | None = None
    """Deployments or replicas that attempts have used. None: not tracked."""
    on_queued: Callable[[str], None] | None = None
    """Called with the reason if the first token will be late, for example during a cold start."""


@dataclass(frozen=True)
class Terms:
    """Conditions of a call.

    The first six fields belong to the run and are made once. The others belong to the call.
    """

    deadline_at_s: float | None = None
    """End of the caller's time, by `time.monotonic`. None: no deadline."""
    permit: Permit = ANYTHING
    """Workers that may be called, and what may happen to the texts."""
    priority: Priority = "interactive"
    """Order in queues."""
    payer: str = ""
    """Id of the key that pays: queues take turns by key. Empty: keys are off."""
    team: str = ""
    """Id of the team of that key. Empty: none."""
    refusals: Refusals | None = None
    """Workers that have refused in this run. None: not tracked."""
    begins: bool = False
    """Whether the run has paid for nothing yet, so that the call may be turned away from a long queue."""
    has_fallback: bool = False
    """Whether another worker is free to answer instead."""
    broken: frozenset[tuple[str, str]] = frozenset()
    """Workers, each with its deployment, whose answer to this call broke off: they are tried last."""
    outlasts_break: bool = False
    """Whether an answer that breaks off is continued or started again."""
    rest_tokens: int | None = None
    """Limit of what follows `Call.prefix`, in tokens. None: `Call.sampling` alone limits it."""
    observer: Observer | None = None
    holds: Holds | None = None
    """What is reserved for the call in the budget. None: nothing is billed."""
    limits: AttemptLimits = field(default_factory=AttemptLimits)
    """Limits of the attempt that is being made; set by the dispatcher."""

    @property
    def tenant(self) -> str:
        """The team of the key that pays, or else the key. Empty: keys are off."""
        return self.team or self.payer


ANY_TERMS = Terms()
