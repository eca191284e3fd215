"""JSON lines, plain or gzipped: the one reader of question files and recorded pools."""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

from evaluation.errors import EvaluationError

GZIP = b"\x1f\x8b"
"""How a gzip file begins (RFC 1952, section 2.3.1), whatever it is called."""


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The value of each line that is not blank, with the place that errors name: `FILE, line 3`.

    Raises:
        EvaluationError: the file cannot be read, is not UTF-8, or a line is not JSON.
    """
    number = 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(_text(file), 1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield place, _parse(line, place)
    except UnicodeDecodeError as exc:
        raise EvaluationError(
            f"{path} is not UTF-8: {exc.reason}, from line {number + 1} on. Save it as UTF-8."
        ) from exc
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise EvaluationError(
            f"{path}, from line {number + 1} on: its gzip data are damaged: {exc}. Fetch it again."
        ) from exc
    except OSError as exc:
        raise EvaluationError(f"{path} cannot be read: {exc.strerror or exc}.") from exc


def _text(file: BufferedReader) -> TextIOWrapper:
    is_gzip = file.peek(len(GZIP)).startswith(GZIP)
    return TextIOWrapper(gzip.open(file) if is_gzip else file, encoding="utf-8")


def _parse(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except RecursionError as exc:
        raise EvaluationError(f"{place}: it is nested too deeply; write one JSON object a line.") from exc
    except ValueError as exc:
        raise EvaluationError(f"{place}: it is not JSON: {exc}; write one JSON object a line.") from exc
