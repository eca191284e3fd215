"""Read training questions from a JSONL file (`questions.source: jsonl`), and validate them before training.

A line that cannot be graded would otherwise give wrong rewards for hours without an error.
"""

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

from evaluation import EvaluationError
from evaluation.graders import GRADERS
from evaluation.json_lines import read_json_lines
from evaluation.questions import Question
from evaluation.sources.packaged import LETTERS
from evaluation.sources.reasoning_gym import WHITELIST
from podium.command_line.options import is_number
from serving.settings.settings import SettingsError


def _nonempty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


NonEmpty = Annotated[str, AfterValidator(_nonempty)]
Model = TypeVar("Model", bound=BaseModel)


class Facts(BaseModel):
    """Facts that the warm start reads from a line. Other keys are allowed."""

    model_config = ConfigDict(strict=True)

    parts: list[str] = Field(default_factory=list)
    chain: list[str] = Field(default_factory=list)


class CodeFacts(Facts):
    """Facts that the grader `code` needs, in HumanEval's fields."""

    entry_point: NonEmpty
    prompt: str
    test: NonEmpty


class RecordedFacts(Facts):
    """Facts that the grader `recorded` needs: the answers that count as right."""

    right: list[str]


class ReasoningGymFacts(Facts):
    """Facts that the grader `reasoning_gym` needs: the data set's own entry."""

    entry: dict[str, Any]


FACTS: dict[str, type[Facts]] = {
    "code": CodeFacts,
    "recorded": RecordedFacts,
    "reasoning_gym": ReasoningGymFacts,
}
"""Model of the facts that a grader needs, by grader. Graders that are not listed need none."""


class QuestionLine(BaseModel):
    """One line of a `jsonl` source, with the fields of `evaluation.questions.Question`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: NonEmpty
    text: NonEmpty
    expected: str
    grader: str
    source: NonEmpty
    family: NonEmpty
    facts: dict[str, Any] = Field(default_factory=dict)

    @field_validator("grader")
    @classmethod
    def _check_grader(cls, grader: str) -> str:
        if grader not in GRADERS:
            raise ValueError(f"unknown grader {grader!r}. Choose from {', '.join(GRADERS)}")
        return grader

    @model_validator(mode="after")
    def _check_expected(self) -> Self:
        """Reject an expected answer that no answer can equal, so that its reward could never be reached."""
        if self.grader in ("exact", "math") and not self.expected.strip():
            raise ValueError("expected: must not be empty")
        if self.grader == "numeric" and not is_number(self.expected):
            raise ValueError(f"expected: {self.expected!r} is not a number. Use a number, or another grader")
        if self.grader == "choice" and self.expected.strip().upper() not in tuple(LETTERS):
            raise ValueError(f"expected: {self.expected!r} is not a choice. Use one of the letters {LETTERS}")
        if self.grader == "reasoning_gym" and self.family not in WHITELIST:
            raise ValueError(
                f"family: {self.family!r} is not a data set with a reliable scorer. "
                f"Choose from {', '.join(WHITELIST)}"
            )
        return self


def read_questions(path: str) -> list[Question]:
    """Return the questions of a file. The SettingsError has line, field and remedy."""
    questions: dict[str, Question] = {}
    places: dict[str, str] = {}
    try:
        for place, data in read_json_lines(path):
            line = _validate(QuestionLine, data, place)
            _validate(FACTS.get(line.grader, Facts), line.facts, place, "facts")
            if line.id in questions:
                first = places[line.id].rpartition(", ")[2]
                raise SettingsError(
                    f"{place}: id: {line.id!r} is already used in {first}. Give each question a unique id."
                )
            places[line.id], questions[line.id] = place, Question(**dict(line))
    except EvaluationError as exc:
        raise SettingsError(exc.message) from exc
    if not questions:
        raise SettingsError(f"{path} has no questions. Add one JSON object per line.")
    return list(questions.values())


def _validate(model: type[Model], data: object, place: str, *within: str) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        field = ".".join(str(part) for part in (*within, *fault["loc"]))
        message = fault["msg"].removeprefix("Value error, ")
        if remedy := REMEDIES.get(fault["type"]):
            message = remedy.format(sort=type(fault["input"]).__name__, fields=", ".join(model.model_fields))
        raise SettingsError(f"{place}: {field}: {message}." if field else f"{place}: {message}.") from exc


REMEDIES = {
    "missing": "this field is required. The fields are {fields}",
    "extra_forbidden": "this is not a field of a question. Remove it, or move it into facts. "
    "The fields are {fields}",
    "string_type": 'must be text, not {sort}. Write it in quotes, such as "7"',
    "list_type": "must be a list, not {sort}",
    "dict_type": "must be an object, not {sort}",
    "model_type": "each line must be a JSON object with the fields {fields}, not {sort}",
}
"""Messages by Pydantic's error type."""
