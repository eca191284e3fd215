"""Errors as a tree. The class says where a request failed; the first paragraph of its docstring is the cause in
docs/errors.md.

::

    PodiumError
    ├── BadTask
    │   ├── UnknownName
    │   │   └── UnknownModel
    │   ├── TooLarge
    │   ├── NotTheSame
    │   ├── TooSlow
    │   └── WrongContentType
    ├── NotAllowed
    │   └── Unauthenticated
    ├── NoPlan
    │   └── InvalidPlan
    ├── WorkerError
    │   ├── WorkerUnavailable
    │   ├── WorkerBusy
    │   ├── LineTooLong
    │   ├── WorkerRefused
    │   │   ├── ContentFiltered
    │   │   └── QuestionRejected
    │   ├── AnswerInvalid
    │   └── ContextOverflow
    ├── BudgetExceeded
    ├── DeadlineExceeded
    ├── Overloaded
    ├── RateLimited
    ├── StoreUnavailable
    ├── Cancelled
    └── Interrupted

Every error takes its message as the only positional argument, and its attributes by keyword. Errors can
therefore be pickled across processes (Ray, multiprocessing) without loss. `serving/errors.py` maps them to HTTP
statuses.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Reason why a plan cannot run. Metrics, rewards and repairs are keyed by it, so the set is closed."""

    NO_PLAN = "no_plan"
    """The text contains no plan."""
    MALFORMED = "malformed"
    """The text resembles a plan but does not follow the format's syntax."""
    TRUNCATED = "truncated"
    """The text ended inside the plan."""
    MISSING_FIELD = "missing_field"
    """A step lacks its worker, its subtask or its access list."""
    WRONG_TYPE = "wrong_type"
    """A field has the wrong type."""
    LENGTH_MISMATCH = "length_mismatch"
    """The three lists have different lengths (`lists` format only)."""
    EMPTY_SUBTASK = "empty_subtask"
    """A step has no subtask. Found in older records only; such plans are accepted now."""
    UNKNOWN_WORKER = "unknown_worker"
    """A step names a worker that is not in the request's pool."""
    READS_FORWARD = "reads_forward"
    """A step reads itself, a later step, or a step that does not exist."""
    TOO_MANY_STEPS = "too_many_steps"
    """The plan has more steps than the request allows."""
    NO_TOOLS = "no_tools"
    """A tool must be called, but the answering step cannot call tools."""


class PodiumError(Exception):
    """Podium itself failed unexpectedly.

    Base class of all errors that Podium raises on purpose.

    Args:
        message: one sentence for the caller on what happened and what to do. It contains no address and no
            environment variable, and no worker that the caller neither named nor may see.
        **facts: attributes of the error. See the annotations of each class.
    """

    detail: str = ""
    """Information for operators only, such as the provider's message, `base_url`, or the variable that holds
    a key. It goes into logs, spans and records, never into an answer."""
    param: str | None = None
    """Request field at fault, with the caller's name for it, such as `podium.workers`."""
    retryable: bool = False
    """True if the call may be retried. False for a call that ran for long, because it is billed."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    @property
    def message(self) -> str:
        """Message that was given to the constructor."""
        return str(self.args[0]) if self.args else type(self).__name__


class BadTask(PodiumError):
    """The request is invalid, or no plan can serve it. Nothing was run or billed."""


class UnknownName(BadTask):
    """The request names an object, such as a run, that does not exist or that belongs to another team."""


class UnknownModel(UnknownName):
    """The model does not exist, or this key may not use it. The error does not say which of the two is true."""

    param = "model"


class TooLarge(BadTask):
    """The request exceeds a size limit."""


class NotTheSame(BadTask):
    """An earlier, different request already used the same `Idempotency-Key`."""


class TooSlow(BadTask):
    """The client did not send the whole request in time."""

    retryable = True


class WrongContentType(BadTask):
    """The body is not JSON, or the `content-type` header does not say that it is."""


class NotAllowed(PodiumError):
    """The key, the host or the web page of the request is not allowed to do this. Nothing was run or billed."""


class Unauthenticated(NotAllowed):
    """The request has no API key, or the key is not valid."""


class NoPlan(PodiumError):
    """The conductor wrote no plan that can run, and no worker could answer instead."""


class InvalidPlan(NoPlan):
    """The plan cannot run."""

    reason: Reason = Reason.MALFORMED
    step: int | None = None
    """Index of the step at fault, from 0. None if no single step is at fault."""


class WorkerError(PodiumError):
    """A model failed. The run's record shows what the client received and what was billed before the failure."""

    worker: str | None = None
    """Name of the worker in the pool."""
    step: int | None = None
    """Step that made the call, from 0. None while planning."""
    provider_status: int | None = None
    """HTTP status from the provider, or the one that corresponds to an error in its stream."""
    attempts: tuple[Any, ...] = ()
    """Failed attempts before this one, as `conductor.model.failure.Attempt`, oldest first."""
    usage: Any = None
    cost_usd: Any = None
    """Usage and cost of the failed call, as `Usage` and `Decimal`, if the server reported them."""
    billed_at_bound: bool = False
    """True if the model was already working when the call failed, so that the provider probably bills the call.
    The call is then charged at its maximum cost, or by the part of the answer that streamed."""
    streamed_bytes: int | None = None
    """Bytes of the answer that had streamed, including an estimate of hidden reasoning, for an estimate of
    the cost, or None if not known."""
    sent_bytes: int | None = None
    """Approximate size of the prompt in bytes, for an estimate of the cost, or None if not known."""


class WorkerUnavailable(WorkerError):
    """The worker could not be reached, did not finish its answer, sent an invalid answer, or returned a 5xx status."""

    retryable = True
    only_this_call: bool = False
    """True if the failure says nothing about other calls, for example if the answer was not the one
    requested. Otherwise they would probably fail too."""
    only_late: bool = False
    """True if the call was given up because its first token took longer than usual. If other calls
    received their first token in the meantime, this prompt was probably long or hard."""


class WorkerBusy(WorkerError):
    """The worker has too much to do. It returned the status 429 or 529, or its queue is full."""

    retryable = True
    retry_after_s: float | None = None
    by_own_rate: bool = False
    """True if a rate limit of this process delayed the call. The error then says nothing about the worker."""


class LineTooLong(WorkerError):
    """The call waited in the worker's queue for `max_wait_s` seconds. Podium then dropped the call without sending it."""

    retryable = True
    retry_after_s: float = 1.0
    waited_s: float = 0.0
    """Seconds waited in the queue."""


class WorkerRefused(WorkerError):
    """The worker rejected the call, for example because of an invalid key, an unknown model or a refused prompt."""

    every_call: bool = False
    """True if any other call would be rejected too, as with an invalid key. False if this call is at
    fault."""
    in_doubt: bool = False
    """True if `every_call` is a guess, because a firewall may have rejected this one prompt."""


class ContentFiltered(WorkerRefused):
    """The provider's content filter rejected the prompt. Other prompts still work."""

    param = "messages"


class QuestionRejected(WorkerRefused):
    """The worker is a program, and does not answer this question. It may answer others, also of the same run."""

    param = "messages"


class AnswerInvalid(WorkerError):
    """The answer did not have the required format, and neither did the corrected answer. Both are billed, but
    the client received neither of them.
    """


class ContextOverflow(WorkerError):
    """Together, the prompt and the longest allowed answer are longer than the model's context."""

    param = "messages"


class BudgetExceeded(PodiumError):
    """The next call could have exceeded a budget, so Podium did not make it."""

    spent: str = ""
    held: str = ""
    limit: str = ""
    cost: str = ""
    """Most that the call could have cost."""
    attempts: tuple[Any, ...] = ()
    """Failed `Attempt`s, which are billed, if the call was to be retried."""
    step: int | None = None
    """Step that made the failed attempts, from 0. None while planning."""


class DeadlineExceeded(PodiumError):
    """The request's deadline passed before the answer was complete. Podium closed all open calls."""

    deadline_s: float | None = None


class Overloaded(PodiumError):
    """Podium has no capacity for the request at the moment. Nothing was run."""

    retryable = True
    retry_after_s: float = 1.0


class RateLimited(PodiumError):
    """The key or its team has reached its limit of requests or tokens per minute. Nothing was run."""

    retryable = True
    retry_after_s: float = 1.0
    limit: str = ""


class StoreUnavailable(PodiumError):
    """The store of keys and budgets cannot be reached, so Podium makes no new call. Earlier calls of the run
    may be billed.
    """

    retryable = True
    retry_after_s: float = 2.0
    attempts: tuple[Any, ...] = ()
    """Failed `Attempt`s, which are billed, if a call was to be retried."""
    step: int | None = None
    """Step that made the failed attempts, from 0. None while planning."""


class Cancelled(PodiumError):
    """The run was cancelled before its answer was complete."""


class Interrupted(PodiumError):
    """The router that executed the run stopped before the run was done."""

    retryable = True


SHOWN_CHARS = 80


def quote(value: object) -> str:
    """Return untrusted text for an error message: quoted, and cut if it is long."""
    if isinstance(value, int):
        return str(value) if value.bit_length() < 64 else f"a number of {value.bit_length()} bits"
    text = str(value)
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}… ({len(text)} characters)"


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a hint such as " Did you mean 'coder'?" with the most similar of `names`, or "" if none is similar."""
    by_lower = {each.lower(): each for each in sorted(names)}
    nearest = get_close_matches(str(name)[:SHOWN_CHARS].lower(), by_lower, n=1)
    return f" Did you mean {by_lower[nearest[0]]!r}?" if nearest else ""


def internal_error(exc: Exception) -> PodiumError:
    """Wrap an unexpected exception in a `PodiumError`, so that a run can end with it."""
    error = PodiumError(f"Internal error: {type(exc).__name__}.", detail=str(exc))
    error.__cause__ = exc
    return error
