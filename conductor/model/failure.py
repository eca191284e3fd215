"""Errors as data, so that events and records can be stored and passed between processes."""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Literal, cast

from conductor import errors
from conductor.errors import InvalidPlan, PodiumError, Reason
from conductor.model.usage import Usage
from conductor.model.value import DefaultingValue, Value

Fact = str | int | float | bool
APART = ("detail", "attempts", "usage", "cost_usd")
"""Attributes of an error that are fields of `Failure`. All other attributes become its facts."""


class Failure(Value, frozen=True):
    """An error as data.

    Args:
        code: name of the most specific class in `conductor/errors.py`, such as `WorkerBusy`.
        message: message for the caller. See `PodiumError`.
        detail: detail for operators only. See `PodiumError.detail`.
        facts: other attributes of the error, such as `worker`, `step` and `retry_after_s`.
        attempts: calls that failed before, oldest first.
        usage, cost_usd: usage and cost of the failed call itself, if its server reported them.
    """

    code: str
    message: str
    detail: str = ""
    facts: Mapping[str, Fact] = {}
    attempts: tuple["Attempt", ...] = ()
    usage: Usage | None = None
    cost_usd: Decimal | None = None

    @classmethod
    def of(cls, error: PodiumError) -> "Failure":
        """Return `error` as data, without its cause.

        A custom worker may raise its own class with any attributes. Values that are neither text nor a number
        are converted to text.
        """
        error_class = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
        facts: dict[str, Fact] = {}
        for name in _fields(error):
            value = getattr(error, name, None)
            if value is not None and (name in vars(error) or value != getattr(error_class, name, None)):
                facts[name] = _fact(value)
        attempts = getattr(error, "attempts", ())
        usage = getattr(error, "usage", None)
        return cls(
            error_class.__name__,
            str(error.args[0]) if error.args else type(error).__name__,
            "" if error.detail is None else str(error.detail),  # pyright: ignore[reportUnnecessaryComparison]
            facts,
            tuple(attempts) if all(isinstance(each, Attempt) for each in _as_list(attempts)) else (),
            usage if isinstance(usage, Usage) else None,
            _dollars(getattr(error, "cost_usd", None)),
        )

    @property
    def error_class(self) -> type[PodiumError]:
        """Class that `code` names, or `PodiumError` if this version has no such class."""
        named = getattr(errors, self.code, None)
        return named if isinstance(named, type) and issubclass(named, PodiumError) else PodiumError

    @property
    def explanation(self) -> str:
        """Message and detail, for operators."""
        return f"{self.message} {self.detail}".rstrip()

    @property
    def causes(self) -> "tuple[Failure | Attempt, ...]":
        """Causes, oldest first: calls that failed or were skipped, then this failure."""
        return (*(each for each in self.attempts if each.outcome != "lost_race"), self)

    @property
    def description(self) -> str:
        """Explanation for callers: the messages of all causes, oldest first, without duplicates."""
        messages = [
            f"{each.code if isinstance(each, Failure) else each.error}: {each.message}"
            for each in self.causes
        ]
        return " Then ".join(dict.fromkeys(messages))

    @property
    def retryable(self) -> bool:
        return bool(self.get("retryable"))

    @property
    def reason(self) -> Reason:
        """Reason why a plan cannot run. Only an `InvalidPlan` has one."""
        return Reason(str(self.get("reason")))

    @property
    def cost_is_bound(self) -> bool:
        """True if `cost_usd` is an upper bound."""
        return self.cost_usd is not None and bool(self.get("billed_at_bound"))

    def is_a(self, error_class: type[PodiumError]) -> bool:
        """Return whether the error was an instance of `error_class`."""
        return issubclass(self.error_class, error_class)

    def get(self, name: str) -> Fact | None:
        """Return the attribute `name` of the error, or the default of its class."""
        return self.facts.get(name, getattr(self.error_class, name, None))

    def to_error(self) -> PodiumError:
        """Recreate the error, so that it can be raised."""
        facts: dict[str, object] = dict(self.facts)
        if issubclass(self.error_class, InvalidPlan) and "reason" in facts:
            facts["reason"] = Reason(str(facts["reason"]))
        apart = {
            "detail": self.detail,
            "attempts": self.attempts,
            "usage": self.usage,
            "cost_usd": self.cost_usd,
        }
        return self.error_class(
            self.message, **facts, **{name: value for name, value in apart.items() if value}
        )


class Attempt(DefaultingValue, frozen=True):
    """A call that gave no answer and was followed by another call."""

    worker: str
    error: str
    """Class name of the error, such as `WorkerBusy`."""
    message: str
    waited_s: float = 0.0
    """Seconds waited between this attempt and the next one."""
    detail: str = ""
    """Detail for operators only. See `PodiumError.detail`."""
    outcome: Literal["failed", "cut", "lost_race", "left_alone"] = "failed"
    """End of the attempt.

    * `failed`: the call failed.
    * `cut`: the process that made the call ended, or the answer was interrupted and its step was started again.
    * `lost_race`: another call for the same answer was faster.
    * `left_alone`: the call was not made, because the worker's latest calls failed.
    """
    took_s: float | None = None
    """Seconds from the start of the attempt to its failure. Attempts follow each other, `waited_s` apart. Only
    a hedge overlaps with another attempt."""
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    """Cost, if the server reported it. A failed call may be billed."""
    cost_is_bound: bool = False
    """True if `cost_usd` is an upper bound."""
    deployment: str = ""
    """Deployment that was called. Empty if the worker has only one."""
    hedge: bool = False
    """True for a hedge: a second call for the same answer, sent because the first one was late."""
    provider_status: int | None = None
    """See `WorkerError.provider_status`."""

    @classmethod
    def of(
        cls, worker: str, failure: Failure, *, waited_s: float = 0.0, took_s: float | None = None
    ) -> "Attempt":
        return cls(
            worker,
            failure.code,
            failure.message,
            waited_s,
            failure.detail,
            took_s=took_s,
            usage=failure.usage,
            cost_usd=failure.cost_usd,
            cost_is_bound=failure.cost_is_bound,
            provider_status=status if isinstance(status := failure.get("provider_status"), int) else None,
        )


def _fields(error: PodiumError) -> Iterator[str]:
    """Yield the names of an error's attributes, without its message and those in `APART`."""
    classes = [each for each in type(error).__mro__ if issubclass(each, PodiumError)]
    names = {name for each in classes for name in vars(each).get("__annotations__", {})} | vars(error).keys()
    yield from sorted(names - {*APART, "message", "__notes__"})


def _fact(value: object) -> Fact:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, str | int | float | bool) else str(value)


def _as_list(value: object) -> list[object]:
    return list(cast(Iterable[object], value)) if isinstance(value, Iterable) else [value]


def _dollars(value: object) -> Decimal | None:
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    if isinstance(value, int | float) and isfinite(value):
        return Decimal(str(value))
    return None
