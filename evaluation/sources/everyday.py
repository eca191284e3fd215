"""Short everyday questions that a very small model can partly answer: `everyday?part=test`.

They were written for Podium, in the words that people type, without answer tags. No answer depends on the
year. The split is fixed in `everyday.jsonl`: `part=test` has 200 questions, `part=train` the others; without
`part`, all are used. `family=` names one of `FAMILIES`. Each line says what `evaluation.grading_mentions` accepts and
refuses, and by which rule.
"""

from pathlib import Path
from typing import Any

from evaluation import EvaluationError
from evaluation.json_lines import read_json_lines
from evaluation.questions import Question
from evaluation.spec import Spec

FILE = Path(__file__).with_name("everyday.jsonl")
FAMILIES = ("facts", "sums", "words", "translation", "instructions", "units")
PARTS = ("all", "train", "test")


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    spec.allow_only("part", "family")
    if spec.detail:
        raise EvaluationError(
            f"everyday does not accept {spec.detail!r}. Use `everyday` or `everyday?part=test`."
        )
    part = _choice(spec, "part", PARTS)
    family = _choice(spec, "family", ("all", *FAMILIES))
    return [
        _question(row)
        for _, row in read_json_lines(FILE)
        if part in ("all", row["part"]) and family in ("all", row["family"])
    ]


def _choice(spec: Spec, option: str, choices: tuple[str, ...]) -> str:
    value = spec.options.get(option, "all")
    if value not in choices:
        raise EvaluationError(f"everyday: {option}={value!r} must be one of {', '.join(choices)}.")
    return value


def _question(row: dict[str, Any]) -> Question:
    facts = {name: row[name] for name in ("accepted", "refused", "rule", "count") if name in row}
    return Question(
        id=f"everyday/{row['id']}",
        text=row["question"],
        expected=row["accepted"][0],
        grader="mentions",
        source="everyday",
        family=row["family"],
        facts=facts,
    )
