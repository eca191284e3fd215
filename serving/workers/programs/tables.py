"""Tables of the text tools: CSV, JSON and Markdown. Digits and order stay the same."""

import csv
import io
import json
import re
from typing import Any, TypeGuard, cast

from serving.workers.programs.process import NotForProgram

MOST_DEPTH, MOST_CELLS = 40, 20_000
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


def _rows(text: str) -> list[list[str]]:
    try:
        first = text.strip().splitlines()[0]
        delimiter = next((sign for sign in ("\t", ";", ",", "|") if sign in first), ",")
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(io.StringIO(text.strip()), delimiter=delimiter, strict=True)
            if row
        ]
    except (csv.Error, IndexError) as exc:
        raise NotForProgram("The text is not valid CSV.") from exc
    if (
        len(rows) < 2
        or len(rows[0]) < 2
        or len({len(row) for row in rows}) != 1
        or len(rows) * len(rows[0]) > MOST_CELLS
    ):
        raise NotForProgram(
            f"The text must be a table with a header, at least two columns, rows of equal length and at most {MOST_CELLS:,} cells."
        )
    if len(set(rows[0])) != len(rows[0]):
        raise NotForProgram("Two columns of the table have the same name.")
    return rows


def read_json(text: str) -> Any:
    if _depth(text) > MOST_DEPTH:
        raise NotForProgram(f"The JSON must be nested at most {MOST_DEPTH} levels deep.")
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise NotForProgram(f"The text is not valid JSON: {exc}.") from exc


def _depth(text: str) -> int:
    depth, deepest = 0, 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        deepest = max(deepest, depth)
    return deepest


class _Number(str):
    """JSON number that is written with the same digits as in the input."""

    __slots__ = ()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def format_json(text: str, *, is_compact: bool) -> str:
    """Change only the whitespace between the tokens of JSON. Raise NotForProgram if it is invalid."""
    read_json(text)
    pieces: list[str] = []
    depth, before = 0, ""
    for piece in _JSON_TOKEN.findall(text):
        line = "" if is_compact else "\n" + "  " * (depth - (piece in "]}"))
        depth += (piece in "[{") - (piece in "]}")
        if (piece in "]}" and before not in ("[", "{")) or (before in ("[", "{", ",") and piece not in "]}"):
            pieces.append(line)
        pieces.append(piece if is_compact or piece != ":" else ": ")
        before = piece
    return "".join(pieces)


def csv_to_json(text: str) -> str:
    header, *rows = _rows(text)
    return json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2, ensure_ascii=False)


def count_rows(text: str) -> tuple[int, bool]:
    """Return the number of rows of CSV, or of objects of a JSON list, and whether they have a name."""
    header, rows = (
        _objects(text) if text.lstrip().startswith(("[", "{")) else (_rows(text)[0], _rows(text)[1:])
    )
    return len(rows), any(name.casefold() in ("name", "first name", "person") for name in header)


def _is_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return (
        bool(value) and type(value) is list and all(type(each) is dict for each in cast("list[Any]", value))
    )


def _objects(text: str) -> tuple[list[str], list[list[str]]]:
    value: Any = read_json(text)
    if not _is_objects(value):
        raise NotForProgram("The JSON must be a list of objects that is not empty.")
    header = list(dict.fromkeys(name for each in value for name in each))
    if (
        any(isinstance(cell, dict | list) for each in value for cell in each.values())
        or len(value) * len(header) > MOST_CELLS
    ):
        raise NotForProgram(
            f"The objects must not contain objects or lists, and the table must have at most {MOST_CELLS:,} cells."
        )
    return header, [[_cell(each.get(name)) for name in header] for each in value]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def json_to_csv(text: str) -> str:
    header, rows = _objects(text)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue().rstrip("\n")


def markdown_table(text: str) -> str:
    if text.startswith("["):
        header, rows = _objects(text)
    else:
        header, *rows = _rows(text)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


_PAIR = re.compile(
    r"(?P<label>[^\d:=(]*?[^\s\d:=(-])(?:\s*[:=(-]\s*|\s+)(?P<value>(?:[$€£] ?)?-?\d[\d.,]*(?: ?(?:[a-z%€$£°]{1,12}))?)\)?",
    re.IGNORECASE,
)


def read_pairs(text: str) -> list[tuple[str, str]]:
    """Read a list of names with one amount each, such as `Mia 31, Ben 27`. Raise NotForProgram if an item is not one."""
    items = [
        each.strip()
        for each in re.split(r"\n|;|,(?!\d{3}\b)(?: and\b)?|(?<=\d) and (?=[^\d])", text.strip().rstrip("."))
        if each.strip()
    ]
    pairs = [(pair["label"].strip(), pair["value"]) for each in items if (pair := _PAIR.fullmatch(each))]
    if len(pairs) < 2 or len(pairs) != len(items):
        raise NotForProgram("The text must be a list of names with one amount each.")
    return pairs


def amount_in(value: str) -> float:
    """Return the number of an amount such as `31`, `$4.50` or `1,200 km`."""
    return float(re.sub(r"[^\d.-]", "", value).rstrip("."))


def pairs_table(pairs: list[tuple[str, str]], header: list[str]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *map(list, pairs)])
