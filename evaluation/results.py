"""Append-only log of results, so that an interrupted evaluation can resume.

Each line is a JSON object. Its key consists of the strategy, the question, and a digest of everything else
that the answer depends on. If the process dies while it writes a line, the incomplete line is removed when
the file is opened again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from evaluation import EvaluationError
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question

Key = tuple[str, str, str]
TRANSIENT = {
    *("WorkerBusy", "WorkerUnavailable", "LineTooLong", "Overloaded", "DeadlineExceeded"),
    *("worker_busy", "worker_unavailable", "line_too_long", "overloaded", "deadline_exceeded"),
    *("http_429", "http_502", "http_503", "http_504", "APIConnectionError", "APITimeoutError"),
}
"""Errors that may not recur. A resumed evaluation repeats the questions that ended with one of them."""
MOST_USD = 1_000_000
"""Largest plausible cost of a call or a question. Larger amounts are rejected as invalid."""


@dataclass(frozen=True, slots=True)
class Result:
    """Graded answer of one strategy to one question.

    Args:
        digest: a digest of everything else that the answer depends on: settings, caps, seed and options.
        notes: data for strategies that run later, such as which samples were right.
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
        about = question.id, question.source, question.family, digest
        return cls(strategy, *about, grade.correct, grade.extracted, grade.why, outcome, notes)

    @property
    def key(self) -> Key:
        return self.strategy, self.question, self.digest

    @property
    def no_answer(self) -> bool:
        """Whether the run succeeded but no answer was found in its text."""
        return self.outcome.error is None and self.extracted is None


def digest(facts: Any) -> str:
    """Return 12 hexadecimal digits that change if anything in `facts` changes."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class ResultLog:
    """Log file of results, as a context manager. Only one process at a time may use it."""

    def __init__(self, path: Path) -> None:
        """Open the file and read its results. Raise EvaluationError if it has other content."""
        self._path = path
        self._results: dict[Key, Result] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
            self._read()
        except OSError as exc:
            raise EvaluationError(
                f"Cannot write results to {path}: {exc.strerror}. Choose another folder with --out."
            ) from exc

    def __enter__(self) -> "ResultLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, strategy: str, question: str, digest: str) -> Result | None:
        """Return the newest result for this key, or None if there is none or its error was transient."""
        result = self._results.get((strategy, question, digest))
        return None if result is not None and result.outcome.error in TRANSIENT else result

    def add(self, result: Result) -> None:
        """Append a result to the file. After an OSError, earlier results are intact."""
        line = json.dumps(asdict(result), separators=(",", ":"), default=str)  # `str` for Decimal costs
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
    """Return the results in a log, oldest first. An incomplete last line is skipped."""
    try:
        with path.open("rb") as file:
            return [result for result, _ in _whole_lines(file, path)]
    except OSError as exc:
        raise EvaluationError(
            f"Cannot read the results in {path}: {exc.strerror}. Pass the --out folder of `podium eval`."
        ) from exc


def _whole_lines(file: Iterable[bytes], path: Path) -> Iterator[tuple[Result, int]]:
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            break  # incomplete: the process died while writing
        try:
            yield _parse(json.loads(line)), len(line)
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as exc:
            raise EvaluationError(
                f"{path}, line {number} is not a result ({type(exc).__name__}: {exc}). "
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
        raise ValueError(f"cost_usd must be between 0 and {MOST_USD:,}, not {cost}")
    return amount
