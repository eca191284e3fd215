"""A recorded pool: what real models once answered to questions that a program can check.

JSON lines, plain or gzipped, each `{"difficulty", "category", "dataset", "question", "expected", "models": {name: {"s", "a"}}}`:
`s` the recorded score of 0 to 1, `a` the recorded answer (null where the model gave none). The file stays where its owner has
it and is found by the path that the user gives. The source and the replaying workers read the same index.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evaluation.errors import EvaluationError
from evaluation.answer_extraction import ANSWER_FORM

RIGHT = 0.99
"""A recorded score from here on counts as right; below it is the scorer's partial credit."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    s: float
    a: str | None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    difficulty: str = "unknown"
    category: str = "unknown"
    dataset: str
    question: Annotated[str, Field(min_length=1)]
    expected: str
    models: dict[str, _Answer]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One question and what was answered.

    Args:
        key: of the question's text, the same in every file.
        question, expected, difficulty, category, dataset: as recorded.
        answers: model to its answer; None where it gave none.
        right: the models whose recorded score counts as right.
    """

    key: str
    question: str
    expected: str
    difficulty: str
    category: str
    dataset: str
    answers: Mapping[str, str | None]
    right: frozenset[str]

    @property
    def asked(self) -> str:
        """The question with the form of its answer."""
        return f"{self.question}\n\n{ANSWER_FORM}"


def key_of(question: str) -> str:
    """What stands for a question's text."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


@lru_cache(maxsize=4)
def read(path: str) -> Mapping[str, Recorded]:
    """Every question of a file by its key. Of those that are there twice with one text, the first one counts.

    Raises:
        EvaluationError: it is not there, or a line is not of the format; with line and field.
    """
    found: dict[str, Recorded] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = _Row.model_validate_json(line)
        except ValidationError as exc:
            fault = exc.errors(include_url=False)[0]
            field = ".".join(str(part) for part in fault["loc"]) or "the line"
            raise EvaluationError(
                f"{path}, line {number}: {field}: {fault['msg']}. Each line is one recorded question; "
                'see docs/evaluation.md, "A recorded pool".'
            ) from exc
        key = key_of(row.question)
        found.setdefault(
            key,
            Recorded(
                key, row.question, row.expected, row.difficulty, row.category, row.dataset,
                {name: each.a for name, each in row.models.items()},
                frozenset(name for name, each in row.models.items() if each.a is not None and each.s >= RIGHT),
            ),
        )  # fmt: skip
    return found


def _lines(path: str) -> Iterator[str]:
    opened = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            yield from lines
    except (OSError, EOFError, UnicodeDecodeError) as exc:
        raise EvaluationError(
            f"The recorded pool {path} cannot be read: {exc}. Give the path of a file."
        ) from exc


def models_of(recorded: Mapping[str, Recorded]) -> list[str]:
    """The models that answered every one of these questions, in alphabetical order."""
    every = [set(each.answers) for each in recorded.values()]
    return sorted(set.intersection(*every)) if every else []
