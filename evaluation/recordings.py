"""Recorded pools: files with the answers of real models to questions that a program can check.

A pool is a file of JSON lines, plain or gzipped: `{"difficulty", "category", "dataset", "question",
"expected", "models": {name: {"s", "a"}}}`. `s` is the recorded score from 0 to 1, and `a` the recorded
answer, or null if the model gave none. The user passes the path of the file. The question source and the
replaying workers read the same index of questions.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evaluation import EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.json_lines import read_json_lines

RIGHT = 0.99
"""Lowest recorded score that counts as right. Lower scores are partial credit."""
TRAIN_SHARE = 0.6
"""Default share of the questions that are on the training side."""


class RecordedAnswer(BaseModel):
    """Answer of one model. `s` is its score from 0 to 1. `a` is its text, or None if the model gave no
    answer.
    """

    model_config = ConfigDict(frozen=True)

    s: float = Field(ge=0, le=1 + 1e-9, allow_inf_nan=False)  # sums of partial credits can exceed 1 slightly
    a: str | None = None


class RecordedQuestion(BaseModel):
    """One line of a recorded pool."""

    model_config = ConfigDict(frozen=True)

    difficulty: str = "unknown"
    category: str = "unknown"
    dataset: str
    question: Annotated[str, Field(min_length=1)]
    expected: str
    models: dict[str, RecordedAnswer]

    @property
    def prompt(self) -> str:
        """The question, followed by the required form of its answer."""
        return f"{self.question}\n\n{ANSWER_FORM}"

    @property
    def right_answers(self) -> set[str]:
        """Answers whose recorded score counts as right."""
        return {each.a.strip() for each in self.models.values() if each.a is not None and each.s >= RIGHT}


def key_of(question: str) -> str:
    """Return a key for a question that depends only on its text, so that it is the same in every file."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


def side_of(key: str, train_share: float = TRAIN_SHARE) -> str:
    """Return the side of a question, `train` or `test`. It depends only on the key, so it is the same in
    every file.
    """
    return "train" if int(key[:8], 16) / 16**8 < train_share else "test"


@lru_cache(maxsize=4)
def read_recordings(path: str) -> Mapping[str, RecordedQuestion]:
    """Return a file's questions by key, the first of equal texts. The EvaluationError names line and field."""
    recordings: dict[str, RecordedQuestion] = {}
    for place, line in read_json_lines(path):
        try:
            question = RecordedQuestion.model_validate(line)
        except ValidationError as exc:
            fault = exc.errors(include_url=False)[0]
            field = ".".join(str(part) for part in fault["loc"]) or "the line"
            raise EvaluationError(
                f"{place}: {field}: {fault['msg']}. Each line must be one recorded question. "
                'See "A recorded pool" in docs/evaluation.md.'
            ) from exc
        recordings.setdefault(key_of(question.question), question)
    return recordings


def complete_models(recordings: Mapping[str, RecordedQuestion]) -> list[str]:
    """Return the models that have an entry for every question, in alphabetical order."""
    every = [set(each.models) for each in recordings.values()]
    return sorted(every[0].intersection(*every)) if every else []
