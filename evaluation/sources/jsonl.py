"""Questions from JSON lines, plain or gzipped: `jsonl:PATH?question=prompt&answer=gold&grader=numeric`.

The fields are `question`, `answer`, and optionally `id` and `family`; options name other fields. `form=`
replaces the sentence that asks for `<answer>` tags; an empty one leaves it out.
"""

from pathlib import Path

from evaluation import EvaluationError
from evaluation.json_lines import read_json_lines
from evaluation.questions import Question
from evaluation.sources.rows import FIELDS, questions_from_rows
from evaluation.spec import Spec


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    spec.allow_only(*FIELDS)
    if not spec.detail:
        raise EvaluationError("jsonl needs the path of a file. Use jsonl:PATH.")
    return questions_from_rows(spec, read_json_lines(spec.detail), Path(spec.detail).name.split(".")[0])
