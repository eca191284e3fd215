"""Turn the rows of any data set into questions. Options name the fields. `jsonl` and `hub` use this
module.
"""

from collections.abc import Iterable
from typing import Any, cast

from evaluation import EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.questions import Question
from evaluation.spec import Spec

FIELDS = ("question", "answer", "id", "family", "grader", "form")
"""Options of both sources. All except `grader` and `form` name a field of the rows."""
ROW_GRADERS = ("exact", "numeric", "choice", "math")
"""Graders that need only the expected answer."""


def questions_from_rows(spec: Spec, rows: Iterable[tuple[str, Any]], source: str) -> list[Question]:
    """Turn rows, each with its location for messages, into questions. The EvaluationError names location and
    field.
    """
    grader, form = spec.options.get("grader", "exact"), spec.options.get("form", ANSWER_FORM)
    if grader not in ROW_GRADERS:
        raise EvaluationError(f"{spec.name}: grader={grader!r} must be one of {', '.join(ROW_GRADERS)}.")
    names = {field: spec.options.get(field, field) for field in ("question", "answer", "id", "family")}
    questions: list[Question] = []
    for number, (place, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise EvaluationError(f"{place}: expected a JSON object, not {type(row).__name__}.")
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
        fault = f"must be a number or non-empty text, not {value!r:.40}" if field in row else "is missing"
        raise EvaluationError(
            f"{place}: the field {field!r} {fault}. Choose another field with ?{role}=FIELD; the fields of the row are {has}."
        )
    return str(value)
