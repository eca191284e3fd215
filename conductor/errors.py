"""What can go wrong, drawn as a tree. The type says which border a failure crossed.

::

    PodiumError
    ├── BadTask              the caller asked for something no plan can serve
    │   ├── UnknownName          it named something that is not there, such as a run
    │   │   └── UnknownModel         it named a model that is not there, or not for this caller
    │   ├── TooLarge             it is bigger than what is taken
    │   ├── NotTheSame           an earlier request of that name asked for something else
    │   ├── TooSlow              it was not whole in time
    │   └── WrongContentType     its body is not JSON, or does not say so
    ├── NotAllowed           the caller may not ask for it
    │   └── Unauthenticated      nobody knows who the caller is
    ├── NoPlan               neither a plan nor a fallback could be made
    │   └── InvalidPlan      a plan was written, and it cannot run; `reason` is one of `Reason`
    ├── WorkerError          a model failed; says which worker, and which step where one is known
    │   ├── WorkerUnavailable    not reachable, cut off, broken: may be tried again
    │   ├── WorkerBusy           told us to wait: may be tried again, after `retry_after_s`
    │   ├── LineTooLong          its turn did not come in time; nothing was sent. Says when to come back
    │   ├── WorkerRefused        understood us and said no: trying again gives the same
    │   │   └── ContentFiltered      its provider's filter stopped the prompt
    │   ├── AnswerInvalid        its answer is not of the form that was asked for, nor was its second one
    │   └── ContextOverflow      the prompt is longer than the model can read
    ├── BudgetExceeded       the next call could cost more than is left; says cost, spent, held, limit
    ├── DeadlineExceeded     the caller's time is over
    ├── Overloaded           Podium itself has no room; says when to come back
    ├── RateLimited          the caller asks for more in a minute than it may; says when to come back
    ├── StoreUnavailable     what must be written down before a call cannot be; says when to come back
    ├── Cancelled            somebody asked for its end
    └── Interrupted          the process that did it ended

Every error takes one positional argument, its message, and its facts by keyword, so that it crosses a
process border as a pickle (Ray, multiprocessing) with nothing lost. The table to HTTP statuses is
`serving/errors.py`.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why a plan cannot run. A closed set: metrics, rewards and repairs are keyed by it."""

    NO_PLAN = "no_plan"
    """The text holds no plan at all."""
    MALFORMED = "malformed"
    """There is something like a plan, but it is not the format's syntax."""
    TRUNCATED = "truncated"
    """The text ended inside the plan."""
    MISSING_FIELD = "missing_field"
    """A step lacks its worker, its subtask or its access list."""
    WRONG_TYPE = "wrong_type"
    """A field is there and is not of its type."""
    LENGTH_MISMATCH = "length_mismatch"
    """The three lists are not equally long (`lists` format only)."""
    EMPTY_SUBTASK = "empty_subtask"
    """A step says nothing. No plan is refused for it any more; older records were."""
    UNKNOWN_WORKER = "unknown_worker"
    """A step names a worker that this request's pool does not have."""
    READS_FORWARD = "reads_forward"
    """A step reads itself or a later step, or a step that is not there."""
    TOO_MANY_STEPS = "too_many_steps"
    """More steps than the request allows."""
    NO_TOOLS = "no_tools"
    """A tool must be called, and the answering step cannot call any."""


class PodiumError(Exception):
    """Anything Podium raises on purpose.

    Args:
        message: one sentence for the caller: what happened and what to do. It names no address, no
            environment variable and no worker that the caller did not name or is not told of anyway.
        **facts: the error's fields, see each class's annotations.
    """

    detail: str = ""
    """What only the operator needs, such as a provider's own words, `base_url`, the variable that holds a
    key. For logs, spans and records; never in an answer."""
    param: str | None = None
    """The request field at fault, in the caller's words, such as `podium.workers`."""
    retryable: bool = False
    """Whether the same call may succeed when it is made again, and should be: one that was at work for long
    is paid, and is not."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    @property
    def message(self) -> str:
        """The sentence given to the constructor."""
        return str(self.args[0]) if self.args else type(self).__name__


class BadTask(PodiumError):
    """The caller asked for something no plan can serve. Nothing was run or paid."""


class UnknownName(BadTask):
    """The caller named something that is not there, such as a run."""


class UnknownModel(UnknownName):
    """The caller named a model that is not there, or not for this caller: a caller is not told which."""

    param = "model"


class TooLarge(BadTask):
    """The request is bigger than what is taken."""


class NotTheSame(BadTask):
    """An earlier request with the same Idempotency-Key asked for something else."""


class TooSlow(BadTask):
    """The request was not whole in time."""

    retryable = True


class WrongContentType(BadTask):
    """The request's body is not JSON, or does not say that it is."""


class NotAllowed(PodiumError):
    """The caller may not ask for it. Nothing was run or paid."""


class Unauthenticated(NotAllowed):
    """The request holds no key, or none that is in force."""


class NoPlan(PodiumError):
    """Neither a plan nor a fallback could be made."""


class InvalidPlan(NoPlan):
    """A plan was written, and it cannot run as it is."""

    reason: Reason = Reason.MALFORMED
    step: int | None = None
    """Index of the step at fault, from 0, where there is one."""


class WorkerError(PodiumError):
    """A model failed. What was already shown or paid by then is in the run's record."""

    worker: str | None = None
    """The worker's name in the pool."""
    step: int | None = None
    """The step that asked, from 0; None while planning."""
    provider_status: int | None = None
    """The HTTP status that its provider gave, or that an error in its stream stands for."""
    attempts: tuple[Any, ...] = ()
    """What was tried before giving up, as `conductor.model.failure.Attempt`s, oldest first."""
    usage: Any = None
    cost_usd: Any = None
    """What the failed call took, as `Usage` and `Decimal`, where its server said so before it failed."""
    billed_at_bound: bool = False
    """Whether the model was at work when it failed, so that the call is probably paid: it is billed at the most
    that it could cost, or by what streamed."""
    streamed_bytes: int | None = None
    """How much of an answer had streamed when it failed, unseen thoughts estimated; for an estimate of its cost. None: not
    known."""
    sent_bytes: int | None = None
    """About how many bytes of prompt were sent, likewise; None: not known."""


class WorkerUnavailable(WorkerError):
    """Not reachable, cut off in mid-stream, answered nonsense, or failed inside (5xx)."""

    retryable = True
    only_this_call: bool = False
    """Whether it says nothing of other calls, as where the answer was not the one that was asked for; else they
    would probably fail too."""
    only_late: bool = False
    """Whether it was given up because its first token took longer than is usual: where others got theirs meanwhile,
    it was long or hard."""


class WorkerBusy(WorkerError):
    """Told us to wait (429, 529, a full queue)."""

    retryable = True
    retry_after_s: float | None = None
    by_own_rate: bool = False
    """Whether it was not asked, by a rate that this process keeps: it says nothing of the worker."""


class LineTooLong(WorkerError):
    """The call's turn did not come in time, so it was not made. It says nothing of the worker."""

    retryable = True
    retry_after_s: float = 1.0
    waited_s: float = 0.0
    """In the line."""


class WorkerRefused(WorkerError):
    """Understood the call and said no: a bad key, an unknown model, a refused prompt."""

    every_call: bool = False
    """Whether any other call would be refused too, as with a bad key; else something in this one was."""
    in_doubt: bool = False
    """Whether `every_call` is a guess: a firewall may have said it, of one prompt."""


class ContentFiltered(WorkerRefused):
    """The provider's filter stopped the prompt: it is about what was asked, and no outage."""

    param = "messages"


class AnswerInvalid(WorkerError):
    """Its answer is not of the form that the client asked for, and was not after a repair either. Both are
    paid; nothing of them was shown.
    """


class ContextOverflow(WorkerError):
    """The prompt, or the room asked for the answer, is more than the model can hold."""

    param = "messages"


class BudgetExceeded(PodiumError):
    """The next call could cost more than is left. It was not made; what was spent before it is in the
    record.
    """

    spent: str = ""
    held: str = ""
    limit: str = ""
    cost: str = ""
    """The most that the call could have cost."""
    attempts: tuple[Any, ...] = ()
    """Where it was to be made once more: the `Attempt`s that failed, and are paid."""
    step: int | None = None
    """The step that made them."""


class DeadlineExceeded(PodiumError):
    """The caller's time is over. Every call under way was closed."""

    deadline_s: float | None = None


class Overloaded(PodiumError):
    """Podium has no room for the request; nothing was run."""

    retryable = True
    retry_after_s: float = 1.0


class RateLimited(PodiumError):
    """The caller has asked for as much as it may in a minute. Nothing was run."""

    retryable = True
    retry_after_s: float = 1.0
    limit: str = ""


class StoreUnavailable(PodiumError):
    """The store of keys and budgets cannot be reached, so nothing new is paid for. What was spent before is
    in the record.
    """

    retryable = True
    retry_after_s: float = 2.0
    attempts: tuple[Any, ...] = ()
    """Where a call was to be made once more: the `Attempt`s that failed, and are paid."""
    step: int | None = None
    """The step that made them."""


class Cancelled(PodiumError):
    """Somebody asked for the end of the run before it had an answer."""


class Interrupted(PodiumError):
    """The process that did it ended before it was done. It can be done again."""

    retryable = True


SHOWN_CHARS = 80


def quote(value: object) -> str:
    """Untrusted text for a message about it: quoted, and cut where it is long."""
    if isinstance(value, int):
        return str(value) if value.bit_length() < 64 else f"a number of {value.bit_length()} bits"
    text = str(value)
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}… ({len(text)} characters)"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return " Did you mean 'coder'?" with the known name most like `name`, or "" if none is like it."""
    by_lower = {each.lower(): each for each in sorted(known)}
    nearest = get_close_matches(str(name)[:SHOWN_CHARS].lower(), by_lower, n=1)
    return f" Did you mean {by_lower[nearest[0]]!r}?" if nearest else ""


def internal_error(exc: Exception) -> PodiumError:
    """An unexpected exception as an error that a run can end with. `exc` is its cause."""
    error = PodiumError(f"Internal error: {type(exc).__name__}.", detail=str(exc))
    error.__cause__ = exc
    return error
