"""How question sets and strategies are named on the command line: `name:detail?key=value&key=value`.

Knows no source and no strategy. Values stay text; the reader of an option converts it and rejects what it
cannot use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from evaluation.errors import EvaluationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec:
    """A question set or a strategy, as named on the command line.

    Args:
        name: before the colon.
        detail: between colon and question mark: data sets, a path, a worker.
        options: after the question mark.
    """

    name: str
    detail: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Take `text` apart.

        Raises:
            EvaluationError: an option has no `=`, or the name is missing.
        """
        head, _, tail = text.partition("?")
        name, _, detail = head.partition(":")
        options: dict[str, str] = {}
        for pair in filter(None, tail.split("&")):
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise EvaluationError(
                    f"{text!r}: the option {pair!r} is not key=value. "
                    "Write name?key=value&key=value, in quotes."
                )
            options[key] = value
        if not name:
            raise EvaluationError(f"{text!r} has no name. Write name:detail?key=value.")
        return cls(name, detail, options)

    def __str__(self) -> str:
        tail = "&".join(f"{key}={value}" for key, value in self.options.items())
        return self.name + (f":{self.detail}" if self.detail else "") + (f"?{tail}" if tail else "")

    def allow_only(self, *keys: str) -> None:
        """Reject every option but `keys`.

        Raises:
            EvaluationError: naming the first one, and what is allowed.
        """
        for key in self.options:
            if key not in keys:
                takes = f"it takes {', '.join(keys)}" if keys else "it takes none"
                raise EvaluationError(f"{self.name} has no option {key!r}; {takes}.")

    def value(self, key: str, default: T, convert: Callable[[str], T]) -> T:
        """An option's value, converted; `default` where it is not given.

        Raises:
            EvaluationError: `convert` raises ValueError.
        """
        if key not in self.options:
            return default
        try:
            return convert(self.options[key])
        except ValueError as exc:
            raise EvaluationError(f"{self.name}: {key}={self.options[key]!r} cannot be used: {exc}.") from exc


def count(text: str) -> int:
    """A whole number of at least 1."""
    if (number := int(text)) < 1:
        raise ValueError("it is below 1")
    return number


def share(text: str) -> float:
    """A number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise ValueError("it is not between 0 and 1")
    return number
