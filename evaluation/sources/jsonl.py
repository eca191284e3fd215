"""Any JSON lines, plain or gzipped: `jsonl:PATH?question=prompt&answer=gold&grader=numeric`.

Fields are `question`, `answer`, and where they are there `id` and `family`; options name others. `form=` replaces the sentence
that asks for `<answer>` marks, and an empty one leaves it out.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.questions import Question
from evaluation.sources.rows import FIELDS, asked


def questions(named: Named, count: int | None, seed: int) -> list[Question]:
    """See `evaluation.sources.Source`."""
    named.only(*FIELDS)
    if not named.detail:
        raise EvaluationError("jsonl needs a path: jsonl:PATH.")
    return asked(named, _rows(Path(named.detail)), Path(named.detail).name.split(".")[0])


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", _row(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as exc:
        raise EvaluationError(f"{path} cannot be read: {exc}.") from exc


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise EvaluationError(f"{place}: it is not JSON: {exc}.") from exc
    if not isinstance(row, dict):
        raise EvaluationError(f"{place}: it is {type(row).__name__}; write one JSON object a line.")
    return row
