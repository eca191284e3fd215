"""Rows of any data set as questions; options say which field is which. Shared by `jsonl` and `hub`."""

from collections.abc import Iterable
from typing import Any, cast

from evaluation.answer_extraction import ANSWER_FORM
from evaluation.errors import EvaluationError
from evaluation.questions import Question
from evaluation.spec import Spec

FIELDS = ("question", "answer", "id", "family", "grader", "form")
"""Options that both sources take; all but `grader` and `form` name a field of the rows."""
ROW_GRADERS = ("exact", "numeric", "choice", "math")
"""Graders that need nothing but the expected answer."""


def questions_from_rows(spec: Spec, rows: Iterable[tuple[str, Any]], source: str) -> list[Question]:
    """Turn each row into a question.

    Args:
        spec: with the options.
        rows: each with the place that errors name.
        source: of the questions.

    Raises:
        EvaluationError: a row is not an object, or lacks text in a field; with place and field.
    """
    grader, form = spec.options.get("grader", "exact"), spec.options.get("form", ANSWER_FORM)
    if grader not in ROW_GRADERS:
        raise EvaluationError(f"{spec.name}: grader={grader!r} is none of {', '.join(ROW_GRADERS)}.")
    names = {field: spec.options.get(field, field) for field in ("question", "answer", "id", "family")}
    questions: list[Question] = []
    for number, (place, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise EvaluationError(f"{place}: it is {type(row).__name__}; write one JSON object a line.")
        fields = cast(dict[str, Any], row)
        texts = {
            role: _text(fields, name, place, role)
            for role, name in names.items()
            if role != "family" and (role != "id" or name in fields or "id" in spec.options)
        }
        text = f"{texts['question']}\n\n{form}" if form else texts["question"]
        id, family = texts.get("id", str(number)), str(fields.get(names["family"], source))
        questions.append(Question(f"{source}/{id}", text, texts["answer"], grader, source, family))
    return questions


def _text(row: dict[str, Any], field: str, place: str, role: str) -> str:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        has = ", ".join(map(str, row)) or "nothing"
        fault = f"is {type(value).__name__}, or empty, and not text or a number"
        raise EvaluationError(
            f"{place}: the field {field!r} {fault if field in row else 'is missing'}; it has {has}. "
            f"Choose another with ?{role}=FIELD."
        )
    return str(value)
