"""Rows of any data set as questions: which field is what is the user's to say. Shared by `jsonl` and `hub`."""

from collections.abc import Iterable, Mapping
from typing import Any

from evaluation.errors import EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.spec import Named, text
from evaluation.questions import Question

FIELDS = ("question", "answer", "id", "family", "grader", "form")
"""Options that both sources take; all but `grader` and `form` name a field of the rows."""
ROW_GRADERS = ("exact", "numeric", "choice", "math")
"""Those that need nothing of a question but its expected answer."""


def asked(named: Named, rows: Iterable[tuple[str, Mapping[str, Any]]], source: str) -> list[Question]:
    """Questions of `rows`, each with the place that errors name.

    Raises:
        EvaluationError: a row lacks a field, or holds no text in it; with place and field.
    """
    grader = named.value("grader", "exact", text)
    if grader not in ROW_GRADERS:
        raise EvaluationError(f"{named.name}: grader={grader!r} is none of {', '.join(ROW_GRADERS)}.")
    form = named.value("form", ANSWER_FORM, text)
    names = {field: named.options.get(field, field) for field in ("question", "answer", "id", "family")}
    found: list[Question] = []
    for number, (place, row) in enumerate(rows):
        question = _held(row, names["question"], place, "question")
        id = (
            _held(row, names["id"], place, "id")
            if names["id"] in row or "id" in named.options
            else str(number)
        )
        family = str(row.get(names["family"], source))
        full = f"{question}\n\n{form}" if form else question
        found.append(
            Question(
                f"{source}/{id}", full, _held(row, names["answer"], place, "answer"), grader, source, family
            )
        )
    return found


def _held(row: Mapping[str, Any], field: str, place: str, role: str) -> str:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        has = ", ".join(map(str, row)) or "nothing"
        what = (
            "is missing"
            if field not in row
            else f"is {type(value).__name__}, or empty, and not text or a number"
        )
        raise EvaluationError(
            f"{place}: the field {field!r} {what}; it has {has}. Choose another with ?{role}=FIELD."
        )
    return str(value)
