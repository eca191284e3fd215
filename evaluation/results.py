"""Results as they come, in a file that only grows: a stopped evaluation continues where it was.

One JSON object a line, keyed by strategy, question and the digest of everything else that the answer depends
on. A line that was torn when the process died is cut off when the file is opened again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from evaluation.errors import EvaluationError
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question

Key = tuple[str, str, str]
TRANSIENT = {
    *("WorkerBusy", "WorkerUnavailable", "LineTooLong", "Overloaded", "DeadlineExceeded"),
    *("worker_busy", "worker_unavailable", "line_too_long", "overloaded", "deadline_exceeded"),
    *("http_429", "http_502", "http_503", "http_504", "APIConnectionError", "APITimeoutError"),
}
"""Errors that may not come again, so a resumed evaluation asks again."""
MOST_USD = 1_000_000
"""No call and no question costs more: a larger amount is none."""


@dataclass(frozen=True, slots=True)
class Result:
    """One strategy's answer to one question, graded.

    Args:
        strategy: its label.
        question: its id.
        source: of the question.
        family: of the question.
        digest: of what else the answer depends on: settings, caps, seed, options.
        correct: see `Grade`.
        extracted: see `Grade`.
        why: see `Grade`.
        outcome: answer and price.
        notes: for later strategies, such as which of its samples were right.
    """

    strategy: str
    question: str
    source: str
    family: str
    digest: str
    correct: bool
    extracted: str | None
    why: str
    outcome: RunOutcome
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        strategy: str,
        question: Question,
        digest: str,
        outcome: RunOutcome,
        grade: Grade,
        notes: Mapping[str, Any],
    ) -> "Result":
        """Put a result together."""
        about = question.id, question.source, question.family, digest
        return cls(strategy, *about, grade.correct, grade.extracted, grade.why, outcome, notes)

    @property
    def key(self) -> Key:
        """What it is a result of."""
        return self.strategy, self.question, self.digest

    @property
    def no_answer(self) -> bool:
        """Whether it has no answer though nothing failed."""
        return self.outcome.error is None and self.extracted is None


def digest(facts: Any) -> str:
    """Twelve letters that change when anything in `facts` does."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class ResultLog:
    """The file. One process at a time; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Read what is there.

        Raises:
            EvaluationError: it cannot be read or written, or holds something else.
        """
        self._path = path
        self._results: dict[Key, Result] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
            self._read()
        except OSError as exc:
            raise EvaluationError(
                f"Results cannot be kept in {path}: {exc.strerror}. Choose another --out."
            ) from exc

    def __enter__(self) -> "ResultLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, strategy: str, question: str, digest: str) -> Result | None:
        """The newest result of that key; None where there is none or its error was transient."""
        result = self._results.get((strategy, question, digest))
        return None if result is not None and result.outcome.error in TRANSIENT else result

    def add(self, result: Result) -> None:
        """Append it to the file.

        Raises:
            OSError: the disk is full. What was written before is whole.
        """
        line = json.dumps(asdict(result), separators=(",", ":"), default=str)  # a cost is a Decimal
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self._results[result.key] = result

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for result, length in _whole_lines(self._file, self._path):
            self._results[result.key] = result
            whole += length
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)


def read_results(path: Path) -> list[Result]:
    """What an evaluation has kept, oldest first, a torn last line left out; the file is not changed.

    Raises:
        EvaluationError: it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            return [result for result, _ in _whole_lines(file, path)]
    except OSError as exc:
        raise EvaluationError(
            f"The results {path} cannot be read: {exc.strerror}. Name the --out folder of `podium eval`."
        ) from exc


def _whole_lines(file: Iterable[bytes], path: Path) -> Iterator[tuple[Result, int]]:
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break  # torn: the process died while it wrote
        try:
            yield _parse(json.loads(line)), len(line)
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as exc:
            raise EvaluationError(
                f"{path}, line {number} is no result ({type(exc).__name__}: {exc}). "
                "Move the file away, or choose another --out."
            ) from exc


def _parse(fields: dict[str, Any]) -> Result:
    outcome = dict(fields["outcome"])
    cost = outcome["cost_usd"]
    outcome |= {"cost_usd": None if cost is None else _dollars(cost)}
    outcome |= {name: tuple(outcome[name]) for name in ("workers", "plan")}
    fields["outcome"] = RunOutcome(**outcome)
    return Result(**fields)


def _dollars(cost: Any) -> Decimal:
    amount = Decimal(cost)
    if not (amount.is_finite() and 0 <= amount <= MOST_USD):
        raise ValueError(f"cost_usd is {cost}; it is from 0 to {MOST_USD:,}")
    return amount
