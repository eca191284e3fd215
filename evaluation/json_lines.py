"""JSON lines, plain or gzipped: the one reader of question files and recorded pools."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.errors import EvaluationError


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The value of each line that is not blank, with the place that errors name: `FILE, line 3`.

    Raises:
        EvaluationError: the file cannot be read, is not UTF-8, or a line is not JSON.
    """
    open_text = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield place, _parse(line, place)
    except UnicodeDecodeError as exc:
        raise EvaluationError(f"{path} is not UTF-8: {exc}. Save it as UTF-8.") from exc
    except (OSError, EOFError) as exc:
        raise EvaluationError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}.") from exc


def _parse(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as exc:
        raise EvaluationError(f"{place}: it is not JSON: {exc}; write one JSON object a line.") from exc
