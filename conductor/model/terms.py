"""Conditions of a call: who pays, which workers may be called, and how long the call may take.

They are never sent to a model.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from conductor.errors import ContentFiltered, PodiumError, WorkerError, WorkerRefused
from conductor.model.failure import Attempt
from conductor.model.operation import CallKind
from conductor.model.usage import Price, Usage
from conductor.model.value import Value

Priority = Literal["interactive", "batch"]
"""`interactive`: a client waits for the answer. `batch`: no client waits, and the answer may come later."""


class Refusals:
    """Refusals by workers in one run, including the runs inside it.

    A worker that refused to write a plan may still be called for a step, which has other parameters and
    another prompt, unless it refuses every call.
    """

    def __init__(self) -> None:
        self._errors: dict[tuple[str, CallKind], WorkerRefused] = {}

    def add(self, worker: str, operation: CallKind, error: WorkerRefused) -> None:
        operations: tuple[CallKind, ...] = (operation, "chat", "plan") if error.every_call else (operation,)
        for each in operations:
            self._errors.setdefault((worker, each), error)

    def earlier(self, worker: str, operation: CallKind) -> WorkerRefused | None:
        """Return a new error if `worker` refused this operation before, or None if it may be called."""
        error = self._errors.get((worker, operation))
        if error is None:
            return None
        detail = f"The worker was not called again, because it had already refused a call of this run. {error.detail}".rstrip()
        kind = ContentFiltered if isinstance(error, ContentFiltered) else WorkerRefused
        return kind(error.message, worker=worker, every_call=error.every_call, detail=detail)


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Levels of reasoning effort that a request may set, lowest first."""


class Permit(Value, frozen=True):
    """Limits on the workers that a run may call, and on the use of its texts.

    Args:
        stores: whether texts may be stored after the run has ended, or on another replica.
        traces: whether texts may be put into spans.
        trains: whether models may be trained on the run.
        hides_personal_data: whether personal data is removed from texts that are stored or traced.
    """

    workers: tuple[str, ...] | None = None
    max_effort: str | None = None
    stores: bool = True
    traces: bool = True
    trains: bool = True
    hides_personal_data: bool = False

    def allows(self, worker: str) -> bool:
        return self.workers is None or worker in self.workers

    def narrow(self, other: "Permit") -> "Permit":
        """Return a permit that allows only what both permits allow."""
        workers = self.workers if other.workers is None else other.workers
        if self.workers is not None and other.workers is not None:
            workers = tuple(name for name in self.workers if name in other.workers)
        return Permit(
            workers,
            lowest_effort(self.max_effort, other.max_effort),
            self.stores and other.stores,
            self.traces and other.traces,
            self.trains and other.trains,
            self.hides_personal_data or other.hides_personal_data,
        )


def least(*limits: Any) -> Any:
    """Return the lowest limit, or None if all are None (no limit)."""
    return min((limit for limit in limits if limit is not None), default=None)


def lowest_effort(*limits: str | None) -> str | None:
    """Return the lowest of some effort levels, where None means no limit."""
    return min((limit for limit in limits if limit is not None), key=EFFORTS.index, default=None)


ANYTHING = Permit()
"""Permit of a run that no policy limits."""


@dataclass(slots=True, eq=False)
class Places:
    """Deployments or replicas to which a call has been sent, as updated by the code that chooses."""

    used_names: set[str] = field(default_factory=set[str])
    has_other: Callable[[], bool] = field(default=lambda: True)
    """Return whether an unused place exists. True by default, because an address may have several servers."""

    def take(self, place: str, has_other: Callable[[], bool]) -> None:
        """Record that the call goes to `place`."""
        self.used_names.add(place)
        self.has_other = has_other

    def expect_choice(self) -> None:
        """Let `has_other` return False until `take` records a place."""
        self.has_other = lambda: False

    def __reduce__(self) -> tuple[type["Places"], tuple[()]]:
        """Pickle as an empty object, because each process chooses its own places."""
        return Places, ()


@dataclass(frozen=True, slots=True)
class Callee:
    """A worker, the deployment that a call is sent to, or "" for its only one, and the price if known."""

    worker: str
    deployment: str = ""
    price: Price | None = None


LikelyPrompt = Callable[[Callee], Usage]
"""Function that returns the probable usage of a prompt that was sent to a callee."""


class AttemptHold(Protocol):
    async def renew(self, error: WorkerError, wait_s: float = 0.0) -> int:
        """Pay for the failed attempt, wait, reserve the next, and return its output tokens. Raise
        BudgetExceeded, or StoreUnavailable.
        """
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Mark the attempt as queued inside the block. It costs nothing if its client disconnects there."""
        ...

    def record_callee(self, callee: Callee) -> None:
        """Record where the attempt is sent. If the server does not report usage, the price there is billed."""
        ...


class Holds(Protocol):
    """Budget reservations of one call. A hedge is a second, parallel call, sent because the first is late."""

    def hold(self, *, hedge: bool = False) -> AttemptHold:
        """Return the reservation of the call's current attempt, or of its hedge."""
        ...

    async def hold_second(self) -> bool:
        """Reserve budget for a hedge. Return False, and reserve nothing, if the budget does not allow it."""
        ...

    async def release_second(self) -> None:
        """Release the reservation of a hedge that was not sent."""
        ...

    def drop(self, *, hedge: bool, took_s: float, error: PodiumError | None = None) -> tuple[Attempt, ...]:
        """Record that the hedge, or else the first attempt, has lost. Return it and the attempts before it,
        oldest first.

        `error` is None if the other one was faster. Call `settle_dropped` later to pay for it.
        """
        ...

    async def settle_dropped(self) -> None:
        """Pay for the attempt that `drop` recorded as lost."""
        ...


@dataclass(slots=True)
class Pauses:
    """Pauses between the tokens of an answer. The worker records them, and ends the call after a long one."""

    limit_s: float | None = None
    """Longest pause in seconds if another worker can continue the answer, after which the call ends."""
    longest_s: float | None = None
    """Longest pause so far, in seconds. None before the second token, or if pauses are not measured."""

    def note(self, pause_s: float) -> None:
        self.longest_s = max(pause_s, self.longest_s or 0.0)


class Observer(Protocol):
    """Receiver of the delays and failures of a call before its first token."""

    def on_queued(self, why: str) -> None:
        """Record that the first token will be late, for example during a cold start."""
        ...

    def on_failed(self, attempt: Attempt) -> None:
        """Record an attempt that failed and is followed by another one."""
        ...


@dataclass(slots=True, eq=False)
class AttemptLimits:
    """Time limits of one attempt, and the places that the attempts at this call have used."""

    first_token_s: float | None = None
    """Usual limit for the first token, in seconds, or None if only the settings limit it."""
    patience_s: float | None = None
    """Limit for the first token, in seconds, that leaves enough time for a fallback, or None if not limited."""
    pauses: Pauses | None = None
    """Pauses between the tokens of the answer, or None if not measured."""
    places: Places | None = None
    """Deployments or replicas that attempts have used, or None if not tracked."""
    on_queued: Callable[[str], None] | None = None
    """Called with the reason if the first token will be late, for example during a cold start."""


class Terms(Value, frozen=True):
    """Conditions of a call. The first seven fields are made once for the run, the others for the call."""

    deadline_at_s: float | None = None
    """Deadline of the caller, by `time.monotonic`, or None if it has none."""
    permit: Permit = ANYTHING
    """Workers that may be called, and what may happen to the texts."""
    priority: Priority = "interactive"
    """Priority of the call in queues."""
    payer: str = ""
    """Id of the API key that pays. Queues take turns between keys. Empty if keys are off."""
    team: str = ""
    """Id of the team of that key. Empty if it has none."""
    refusals: Refusals | None = None
    """Workers that have refused in this run, or None if not tracked."""
    home: tuple[str, str] = ("", "")
    """Worker, and its deployment whose cache has the conversation. It is preferred if it is healthy."""
    is_first_paid_call: bool = False
    """True if the run has not paid for anything yet. The call may then be rejected if a queue is long."""
    has_fallback: bool = False
    """True if another worker is free to answer instead."""
    broken: frozenset[tuple[str, str]] = frozenset()
    """Pairs of worker and deployment whose streams for this call were interrupted. They are tried last."""
    outlasts_break: bool = False
    """True if an answer whose stream is interrupted is continued or started again."""
    rest_tokens: int | None = None
    """Limit of the text after `Call.prefix`, in tokens, or None if only `Call.sampling` limits it."""
    answer_tokens: int = 0
    """Number of tokens that the context of a fallback must have left for the answer."""
    observer: Observer | None = None
    holds: Holds | None = None
    """Budget reservations of the call. None if nothing is billed."""
    limits: AttemptLimits = msgspec.field(default_factory=AttemptLimits)
    """Limits of the current attempt. The dispatcher sets them."""

    @property
    def tenant(self) -> str:
        """The team of the key that pays, or the key itself if it has no team. Empty if keys are off."""
        return self.team or self.payer


ANY_TERMS = Terms()
