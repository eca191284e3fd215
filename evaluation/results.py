"""Results as they come, in a file that only grows: a stopped evaluation goes on where it was.

One JSON object a line, keyed by strategy, question and the digest of everything else that the answer depends on. A line that
was torn when the process died is cut off when the file is opened again.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from evaluation.errors import EvaluationError
from evaluation.outcome import Outcome
from evaluation.questions import Grade, Question

Key = tuple[str, str, str]
PASSING = frozenset(
    {"WorkerBusy", "WorkerUnavailable", "Overloaded", "DeadlineExceeded", "worker_busy", "worker_unavailable", "overloaded",
     "deadline_exceeded", "http_429", "http_502", "http_503", "http_504", "APIConnectionError", "APITimeoutError"}
)  # fmt: skip
"""Errors that may be gone when the question is asked again, so a resumed evaluation asks it again."""


@dataclass(frozen=True, slots=True)
class Result:
    """One strategy's answer to one question, judged.

    Args:
        strategy: its label.
        question, source, family: whose.
        digest: of what else the answer depends on: settings, caps, seed, options.
        correct, extracted, why: the grade.
        outcome: what it took.
        notes: what a strategy leaves for those that come after it, such as which of its samples were right.
    """

    strategy: str
    question: str
    source: str
    family: str
    digest: str
    correct: bool
    extracted: str | None
    why: str
    outcome: Outcome
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What it is a result of."""
        return self.strategy, self.question, self.digest

    @property
    def abstained(self) -> bool:
        """It gave no answer, though nothing failed."""
        return self.outcome.error is None and self.extracted is None


def judged(
    strategy: str, question: Question, digest: str, outcome: Outcome, grade: Grade, notes: Mapping[str, Any]
) -> Result:
    """A result of its parts."""
    return Result(
        strategy, question.id, question.source, question.family, digest, grade.correct, grade.extracted, grade.why, outcome,
        notes,
    )  # fmt: skip


def digest(told: Any) -> str:
    """Twelve letters that change when anything in `told` does."""
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class ResultLog:
    """The file. One process at a time; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Reads what is there.

        Raises:
            EvaluationError: it cannot be read or written, or holds something else.
        """
        self._path = path
        self._held: dict[Key, Result] = {}
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
        """The newest result of that key; None where there is none or it is worth another try."""
        found = self._held.get((strategy, question, digest))
        return None if found is not None and found.outcome.error in PASSING else found

    def add(self, result: Result) -> None:
        """Keep it, on the disk too.

        Raises:
            OSError: the disk is full. What was written before is whole.
        """
        self._file.write(json.dumps(_told(result), separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        self._held[result.key] = result

    def _read(self) -> None:
        self._file.seek(0)
        kept = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # torn: the process died while it wrote
            try:
                result = _result(json.loads(line))
            except (ValueError, KeyError, TypeError) as exc:
                raise EvaluationError(
                    f"{self._path}, line {number} is no result ({type(exc).__name__}: {exc}). Move the file away, or choose another --out."
                ) from exc
            self._held[result.key] = result
            kept += len(line)
        self._file.truncate(kept)
        self._file.seek(0, os.SEEK_END)


def _told(result: Result) -> dict[str, Any]:
    told = asdict(result)
    cost = result.outcome.cost_usd
    told["outcome"]["cost_usd"] = None if cost is None else str(cost)
    return told


def _result(told: dict[str, Any]) -> Result:
    outcome = dict(told["outcome"])
    cost = outcome["cost_usd"]
    outcome |= {"cost_usd": None if cost is None else Decimal(cost)}
    outcome |= {name: tuple(outcome[name]) for name in ("workers", "plan")}
    return Result(**(told | {"outcome": Outcome(**outcome)}))
