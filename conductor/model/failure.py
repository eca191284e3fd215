"""A failure as data: what events and records keep of an error, so that a record survives a database and a
process.
"""

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
"""Fields of errors that are fields of a `Failure` too; all others are its facts."""


class Failure(Value, frozen=True):
    """What went wrong.

    Args:
        code: the most specific class of `conductor/errors.py` that the error is one of, such as `WorkerBusy`.
        message: for the caller; see `PodiumError`.
        detail: for operators only; see `PodiumError.detail`.
        facts: the error's other fields, such as `worker`, `step`, `retry_after_s`.
        attempts: the calls that failed before, oldest first.
        usage, cost_usd: what the failed call itself took, where its server said so.
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
        """`error` as data; its cause is left out.

        A worker of one's own may raise a class of its own, with any attributes: what is no text and no
        number is kept as text.
        """
        known = _nearest_class(type(error))
        facts: dict[str, Fact] = {}
        for name in _fields(error):
            value = getattr(error, name, None)
            if value is not None and (name in vars(error) or value != getattr(known, name, None)):
                facts[name] = _fact(value)
        attempts = getattr(error, "attempts", ())
        usage = getattr(error, "usage", None)
        return cls(
            known.__name__,
            str(error.args[0]) if error.args else type(error).__name__,
            "" if error.detail is None else str(error.detail),  # pyright: ignore[reportUnnecessaryComparison]
            facts,
            tuple(attempts) if all(isinstance(each, Attempt) for each in _as_list(attempts)) else (),
            usage if isinstance(usage, Usage) else None,
            _dollars(getattr(error, "cost_usd", None)),
        )

    @property
    def error_class(self) -> type[PodiumError]:
        """The class that `code` names; `PodiumError` where this version has none of that name."""
        found = getattr(errors, self.code, None)
        return found if isinstance(found, type) and issubclass(found, PodiumError) else PodiumError

    @property
    def explanation(self) -> str:
        """The message and the detail: for operators."""
        return f"{self.message} {self.detail}".rstrip()

    @property
    def causes(self) -> "tuple[Failure | Attempt, ...]":
        """What went wrong, the first cause first: calls that failed or were not made, then this failure."""
        return (*(each for each in self.attempts if each.outcome != "lost_race"), self)

    @property
    def story(self) -> str:
        """What went wrong, for callers: the first cause, then what followed, each once."""
        told = [
            f"{each.code if isinstance(each, Failure) else each.error}: {each.message}"
            for each in self.causes
        ]
        return " Then ".join(dict.fromkeys(told))

    @property
    def retryable(self) -> bool:
        """See `PodiumError.retryable`."""
        return bool(self.get("retryable"))

    @property
    def cost_is_bound(self) -> bool:
        """Whether `cost_usd` is the most that the call can have cost."""
        return self.cost_usd is not None and bool(self.get("billed_at_bound"))

    def is_a(self, error_class: type[PodiumError]) -> bool:
        """Whether the error was one of `error_class`."""
        return issubclass(self.error_class, error_class)

    def get(self, name: str) -> Fact | None:
        """A fact, or the default of its error's class."""
        return self.facts.get(name, getattr(self.error_class, name, None))

    def to_error(self) -> PodiumError:
        """The error again, to be raised at a border."""
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
    """A call that gave no answer and was followed by another."""

    worker: str
    error: str
    """The error's class, such as `WorkerBusy`."""
    message: str
    waited_s: float = 0.0
    """How long was waited after it."""
    detail: str = ""
    """For operators only; see `PodiumError.detail`."""
    outcome: Literal["failed", "cut", "lost_race", "left_alone"] = "failed"
    """`cut`: the process that made the call ended, or the answer broke off and its step began again; `lost_race`: another call for the same answer was
    faster; `left_alone`: it was not made, because the worker's newest ones failed."""
    took_s: float | None = None
    """From its start to its failure. Attempts follow one another, so this and `waited_s` place them in
    time; but a hedge and the call that it was made for overlap."""
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    """What it took, where its server said so: a failed call may be billed."""
    cost_is_bound: bool = False
    """`cost_usd` is the most that it can have cost."""
    deployment: str = ""
    """Which of the places where the worker is reached was asked; empty where it has one."""
    hedge: bool = False
    """It was made while the call before it was under way, because that was late."""
    provider_status: int | None = None
    """See `WorkerError.provider_status`."""

    @classmethod
    def of(
        cls, worker: str, failure: Failure, *, waited_s: float = 0.0, took_s: float | None = None
    ) -> "Attempt":
        """A failed call of `worker`."""
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


def charges(failure: Failure | None, attempts: tuple[Attempt, ...] = ()) -> Iterator[Failure | Attempt]:
    """Whatever in `failure` and `attempts` took tokens or money."""
    own = [failure] if failure else []
    for each in (*attempts, *(failure.attempts if failure else ()), *own):
        if each.usage is not None or each.cost_usd is not None:
            yield each


def _nearest_class(error_class: type[PodiumError]) -> type[PodiumError]:
    return next(each for each in error_class.__mro__ if each.__module__ == errors.__name__)


def _fields(error: PodiumError) -> Iterator[str]:
    """The names of what an error says beside its message."""
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
