"""Read JSON lines, plain or gzipped: question files and recorded pools."""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

from evaluation import EvaluationError

GZIP = b"\x1f\x8b"
"""First bytes of a gzip file (RFC 1952, section 2.3.1). The file's name does not matter."""


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield the JSON value of each non-blank line, with its location for messages: `FILE, line 3`."""
    number = 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(_text(file), 1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield place, _parse(line, place)
    except UnicodeDecodeError as exc:
        raise EvaluationError(
            f"{path} is not UTF-8 from line {number + 1} on ({exc.reason}). Save it as UTF-8."
        ) from exc
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise EvaluationError(
            f"{path} has damaged gzip data from line {number + 1} on: {exc}. Download it again."
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
        raise EvaluationError(
            f"{place}: the JSON is nested too deeply. Each line must be one JSON object."
        ) from exc
    except ValueError as exc:
        raise EvaluationError(f"{place}: invalid JSON ({exc}). Each line must be one JSON object.") from exc
