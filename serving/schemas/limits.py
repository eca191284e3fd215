"""What is taken of an untrusted JSON Schema: nothing that fetches, and nothing that takes seconds to check.

* References stay inside the schema.
* It has bounded size and depth, and is a bounded amount of work (`work.py`).
* Patterns are searched in linear time; those that need look-around or back-references have a bounded number of
  steps (`serving/schemas/validator.py`).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from conductor.errors import quote
from serving.schemas.validator import compile_schema
from serving.schemas.walk import Path, Schema, follow, subschemas, target, written
from serving.schemas.work import TooMuchWork, check_work

MOST_CHARS = 200_000
"""Of a schema as JSON."""
MOST_DEPTH = 100
"""Of brackets in brackets."""
MOST_PATTERN_CHARS = 2_000
MOST_PATTERNS = 50
"""Each takes up to 10 ms and 2 MB to compile."""
DRAFTS = re.compile(
    r"https?://json-schema\.org/(draft-0[467]/schema|draft/(2019-09|2020-12)/schema)#?", re.ASCII
)
REF = re.compile(r"#(/.*)?", re.DOTALL)
NOT_TAKEN = ("$dynamicRef", "$recursiveRef", "$vocabulary")
MOST_INTEGER = 2**63


class SchemaFault(ValueError):
    """A schema that is not taken.

    Args:
        path: of the part at fault.
        why: the rest of a sentence about it.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why

    @property
    def place(self) -> str:
        """Of the part at fault; empty: the schema as a whole."""
        return written(self.path)


def check_schema(schema: Schema) -> None:
    """Raise where `schema` is not taken.

    Raises:
        SchemaFault: naming the first part at fault.
    """
    _check_json(schema)
    if len(json.dumps(schema, ensure_ascii=False)) > MOST_CHARS:
        raise SchemaFault((), f"is longer than {MOST_CHARS:,} characters")
    draft = schema.get("$schema")
    if draft is not None and not (isinstance(draft, str) and DRAFTS.fullmatch(draft)):
        raise SchemaFault(
            ("$schema",), f"{quote(draft)} is no draft that is known: name 2020-12, or leave it out"
        )
    for path, part in subschemas(schema):
        _check_words(schema, path, part)
    _check_patterns(schema)
    try:
        compile_schema(schema)
    except ValueError as exc:
        path = cast(Path, tuple(getattr(exc, "instance_path", ())))
        raise SchemaFault(path, f"is not valid JSON Schema: {_short(exc)}") from exc
    try:
        check_work(schema)
    except TooMuchWork as exc:
        raise SchemaFault(exc.path, exc.why) from exc


def _check_json(schema: object) -> None:
    """Depth, and values that not every reader of JSON understands. No recursion: it is not known to be flat."""
    waiting: list[tuple[Path, object]] = [((), schema)]
    while waiting:
        path, value = waiting.pop()
        if len(path) > MOST_DEPTH:
            raise SchemaFault(path[:3], f"is nested deeper than {MOST_DEPTH} levels")
        match value:
            case str():
                _check_text(path, value)
            case float() if not math.isfinite(value):
                raise SchemaFault(path, "is not a finite number")
            case int() if abs(value) >= MOST_INTEGER:
                raise SchemaFault(path, "is a number too large")
            case Mapping():
                items = cast(Mapping[str, object], value)
                for name in items:
                    _check_text(path, name)
                waiting += [((*path, name), each) for name, each in items.items()]
            case Sequence():
                waiting += [
                    ((*path, index), each) for index, each in enumerate(cast(Sequence[object], value))
                ]
            case _:
                pass


def _check_text(path: Path, text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SchemaFault(path, "holds half a surrogate pair, which is no character")


def _check_words(root: Schema, path: Path, part: Schema) -> None:
    """The references of one part."""
    for word in NOT_TAKEN:
        if word in part:
            raise SchemaFault((*path, word), "is not taken: write a $ref to a place in $defs")
    if path and ("$id" in part or "$schema" in part):
        raise SchemaFault((*path, "$id" if "$id" in part else "$schema"), "is taken at the root only")
    ref: Any = part.get("$ref")
    if ref is not None:
        if not isinstance(ref, str) or not REF.fullmatch(ref):
            why = f"{quote(ref)} leads elsewhere: only places in the schema are read, such as #/$defs/name"
            raise SchemaFault((*path, "$ref"), why)
        if target(root, ref) is None:
            raise SchemaFault((*path, "$ref"), f"{quote(ref)} is not there")


def _check_patterns(root: Schema) -> None:
    count = 0
    for path, part in subschemas(root):
        for place, pattern in _patterns(path, part):
            count += 1
            if len(pattern) > MOST_PATTERN_CHARS:
                raise SchemaFault(place, f"has a pattern of more than {MOST_PATTERN_CHARS:,} characters")
            if count > MOST_PATTERNS:
                raise SchemaFault(place, f"is one of more than {MOST_PATTERNS} patterns")


def _patterns(path: Path, part: Schema) -> Iterator[tuple[Path, str]]:
    if isinstance(pattern := part.get("pattern"), str):
        yield (*path, "pattern"), pattern
    properties = part.get("patternProperties")
    for name in cast(Mapping[str, object], properties) if isinstance(properties, Mapping) else ():
        yield (*path, "patternProperties"), name


def is_object(root: Schema) -> bool:
    """Whether the schema asks for an object, as strict formats of providers want it."""
    return follow(root, root).get("type") == "object"


def _short(exc: Exception) -> str:
    text = str(getattr(exc, "message", None) or exc).split("\n", 1)[0]
    return text if len(text) <= 300 else text[:300] + "…"
