"""Syntax of question sets and strategies on the command line: `name:detail?key=value&key=value`.

The values of options stay text. Each source or strategy converts and validates its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from evaluation import EvaluationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec:
    """Question set or strategy on the command line. `detail` is a data set, a path or a worker."""

    name: str
    detail: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, text: str) -> "Spec":
        head, _, tail = text.partition("?")
        name, _, detail = head.partition(":")
        options: dict[str, str] = {}
        for pair in filter(None, tail.split("&")):
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise EvaluationError(
                    f"{text!r}: the option {pair!r} is not of the form key=value. "
                    "Use name?key=value&key=value, in quotes."
                )
            options[key] = value
        if not name:
            raise EvaluationError(f"{text!r} has no name. Use name:detail?key=value.")
        return cls(name, detail, options)

    def __str__(self) -> str:
        tail = "&".join(f"{key}={value}" for key, value in self.options.items())
        return self.name + (f":{self.detail}" if self.detail else "") + (f"?{tail}" if tail else "")

    def allow_only(self, *keys: str) -> None:
        """Reject options that are not in `keys` with an EvaluationError that lists them."""
        for key in self.options:
            if key not in keys:
                takes = f"Its options are {', '.join(keys)}" if keys else "It has no options"
                raise EvaluationError(f"{self.name} has no option {key!r}. {takes}.")

    def value(self, key: str, default: T, convert: Callable[[str], T]) -> T:
        """Return an option's converted value, or `default`. A ValueError becomes an EvaluationError."""
        if key not in self.options:
            return default
        try:
            return convert(self.options[key])
        except ValueError as exc:
            raise EvaluationError(f"{self.name}: {key}={self.options[key]!r} is invalid: {exc}.") from exc


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    if (number := int(text)) < 1:
        raise ValueError("must be at least 1")
    return number


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise ValueError("must be between 0 and 1")
    return number
