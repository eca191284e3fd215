"""Questions of one's own to train on: JSON lines (`questions.source: jsonl`), each checked before anything is trained.

A line that cannot be graded would give wrong rewards for hours, and nobody would know why.
"""

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from evaluation.graders import GRADERS
from evaluation.questions import Question
from evaluation.sources.packaged import LETTERS
from evaluation.sources.reasoning_gym import WHITELIST
from serving.settings import SettingsError


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; write it out")
    return text


Said = Annotated[str, AfterValidator(_said)]
Checked = TypeVar("Checked", bound=BaseModel)


class Facts(BaseModel):
    """What a line's `facts` may tell the warm start; anything else may stand beside it."""

    model_config = ConfigDict(strict=True)

    parts: list[str] = Field(default_factory=list)
    chain: list[str] = Field(default_factory=list)


class CodeFacts(Facts):
    """What the grader `code` needs besides: HumanEval's fields."""

    entry_point: Said
    prompt: str
    test: Said


class RecordedFacts(Facts):
    """What the grader `recorded` needs besides: the answers that count as right."""

    right: list[str]


class GymFacts(Facts):
    """What the grader `reasoning_gym` needs besides: the data set's own entry."""

    entry: dict[str, Any]


FACTS: dict[str, type[Facts]] = {"code": CodeFacts, "recorded": RecordedFacts, "reasoning_gym": GymFacts}
"""By grader; the others need none. `evaluation.graders` reads them."""


class QuestionLine(BaseModel):
    """One line of a `jsonl` source: the fields of `evaluation.questions.Question`, and whether they can be graded."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Said
    text: Said
    expected: str
    grader: str
    source: Said
    family: Said
    facts: dict[str, Any] = Field(default_factory=dict)

    @field_validator("grader")
    @classmethod
    def _known(cls, grader: str) -> str:
        if grader not in GRADERS:
            raise ValueError(f"{grader!r} is no grader; take one of {', '.join(GRADERS)}")
        return grader

    @model_validator(mode="after")
    def _can_be_right(self) -> Self:
        """An expected answer that no answer equals would be 0 reward for ever, and nobody would know why."""
        if self.grader in ("exact", "math") and not self.expected.strip():
            raise ValueError("expected: is empty; write the answer")
        if self.grader == "numeric" and not _is_number(self.expected):
            raise ValueError(f"expected: {self.expected!r} is no number; write one, or take another grader")
        if self.grader == "choice" and self.expected.strip().upper() not in tuple(LETTERS):
            raise ValueError(f"expected: {self.expected!r} is no choice; write one letter of {LETTERS}")
        if self.grader == "reasoning_gym" and self.family not in WHITELIST:
            raise ValueError(
                f"family: {self.family!r} is no data set whose scorer is trusted; take one of {', '.join(WHITELIST)}"
            )
        return self


def _is_number(text: str) -> bool:
    try:
        return Decimal(text.replace(",", "").strip()).is_finite()
    except InvalidOperation:
        return False


def read(path: str) -> list[Question]:
    """The questions of a file.

    Raises:
        SettingsError: it cannot be read, holds none, or has a line that is none; with its number, the field and the remedy.
    """
    found: list[Question] = []
    lines: dict[str, int] = {}
    for number, text in _lines(Path(path)):
        question = _question(text, f"{path}, line {number}")
        if (first := lines.setdefault(question.id, number)) != number:
            raise SettingsError(
                f"{path}, line {number}: id: {question.id!r} is that of line {first} too; give each question its own."
            )
        found.append(question)
    if not found:
        raise SettingsError(f"{path} holds no question.")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Those that are not empty, counted from 1. Unicode's other line ends may stand in JSON strings, and end none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"The questions {path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"The questions {path} are not UTF-8: {exc}. Save them as UTF-8.") from exc
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _question(text: str, place: str) -> Question:
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise SettingsError(f"{place}: it is not JSON: {exc}; write one JSON object a line.") from exc
    line = _checked(QuestionLine, data, place)
    _checked(FACTS.get(line.grader, Facts), line.facts, place, "facts")
    return Question(line.id, line.text, line.expected, line.grader, line.source, line.family, line.facts)


def _checked(model: type[Checked], data: object, place: str, *within: str) -> Checked:
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        field = ".".join(str(part) for part in (*within, *fault["loc"]))
        told = fault["msg"].removeprefix("Value error, ")
        if remedy := REMEDIES.get(fault["type"]):
            told = remedy.format(sort=type(fault["input"]).__name__, fields=", ".join(model.model_fields))
        raise SettingsError(f"{place}: {field}: {told}." if field else f"{place}: {told}.") from exc


REMEDIES = {
    "missing": "is missing; write it. The fields are {fields}",
    "extra_forbidden": "is no field of a question; leave it out, or put it into facts. The fields are {fields}",
    "string_type": 'is {sort} and not text; write it in quotes, such as "7"',
    "list_type": "is {sort}; write a list",
    "dict_type": "is {sort}; write an object",
    "model_type": "it is {sort}; write one JSON object a line, with {fields}",
}
"""By pydantic's name of the fault."""
