"""Limits for untrusted JSON Schemas, so that a client's schema fetches nothing and is quick to check.

* References must stay inside the schema.
* The size and depth of a schema are limited, and so is the work of checking an answer against it (`complexity.py`).
* Patterns are matched in linear time. Patterns with look-around or back-references are matched with a limited
  number of steps (`serving/schemas/validator.py`).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from conductor.errors import quote
from serving.schemas.complexity import SchemaFault, check_work
from serving.schemas.validator import compile_schema
from serving.schemas.walk import Path, Schema, follow, subschemas, target

MOST_CHARS = 200_000
"""Maximum length of a schema as JSON, in characters."""
MOST_DEPTH = 100
"""Maximum depth of nesting."""
MOST_PATTERN_CHARS = 2_000
MOST_PATTERNS = 50
"""Maximum number of patterns. Each takes up to 10 ms and 2 MB to compile."""
DRAFTS = re.compile(
    r"https?://json-schema\.org/(draft-0[467]/schema|draft/(2019-09|2020-12)/schema)#?", re.ASCII
)
REF = re.compile(r"#(/.*)?", re.DOTALL)
NOT_TAKEN = ("$dynamicRef", "$recursiveRef", "$vocabulary")
MOST_INTEGER = 2**63


def check_schema(schema: Schema) -> None:
    """Check that `schema` is valid, self-contained and quick. The SchemaFault names the first faulty
    subschema.
    """
    _check_json(schema)
    if len(json.dumps(schema, ensure_ascii=False)) > MOST_CHARS:
        raise SchemaFault((), f"must have at most {MOST_CHARS:,} characters")
    draft = schema.get("$schema")
    if draft is not None and not (isinstance(draft, str) and DRAFTS.fullmatch(draft)):
        raise SchemaFault(
            ("$schema",),
            f"must be the URL of a known draft, not {quote(draft)}. Use draft 2020-12, or omit the field",
        )
    for path, part in subschemas(schema):
        _check_words(schema, path, part)
    _check_patterns(schema)
    try:
        compile_schema(schema)
    except ValueError as exc:
        path = cast(Path, tuple(getattr(exc, "instance_path", ())))
        raise SchemaFault(path, f"is not a valid JSON Schema: {_short(exc)}") from exc
    check_work(schema)


def _check_json(schema: object) -> None:
    """Check depth and values of `schema`. A recursive check could exceed Python's recursion limit."""
    pending: list[tuple[Path, object]] = [((), schema)]
    while pending:
        path, value = pending.pop()
        if len(path) > MOST_DEPTH:
            raise SchemaFault(path[:3], f"must be nested at most {MOST_DEPTH} levels deep")
        match value:
            case str():
                _check_text(path, value)
            case float() if not math.isfinite(value):
                raise SchemaFault(path, "must be a finite number")
            case int() if abs(value) >= MOST_INTEGER:
                raise SchemaFault(path, "must be an integer of at most 64 bits")
            case Mapping():
                items = cast(Mapping[str, object], value)
                for name in items:
                    _check_text(path, name)
                pending += [((*path, name), each) for name, each in items.items()]
            case Sequence():
                pending += [
                    ((*path, index), each) for index, each in enumerate(cast(Sequence[object], value))
                ]
            case _:
                pass


def _check_text(path: Path, text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SchemaFault(path, "must not contain lone surrogates")


def _check_words(root: Schema, path: Path, part: Schema) -> None:
    """Check the keywords and references of one subschema."""
    for word in NOT_TAKEN:
        if word in part:
            raise SchemaFault((*path, word), "is not supported. Use a $ref to a schema in $defs")
    if path and ("$id" in part or "$schema" in part):
        raise SchemaFault((*path, "$id" if "$id" in part else "$schema"), "is supported only at the root")
    ref: Any = part.get("$ref")
    if ref is not None:
        if not isinstance(ref, str) or not REF.fullmatch(ref):
            why = f"must refer to a part of the schema, such as #/$defs/name, not to {quote(ref)}"
            raise SchemaFault((*path, "$ref"), why)
        if target(root, ref) is None:
            raise SchemaFault((*path, "$ref"), f"refers to {quote(ref)}, which does not exist in the schema")


def _check_patterns(root: Schema) -> None:
    count = 0
    for path, part in subschemas(root):
        for place, pattern in _patterns(path, part):
            count += 1
            if len(pattern) > MOST_PATTERN_CHARS:
                raise SchemaFault(
                    place, f"must not contain a pattern of more than {MOST_PATTERN_CHARS:,} characters"
                )
            if count > MOST_PATTERNS:
                raise SchemaFault(place, f"exceeds the limit of {MOST_PATTERNS} patterns per schema")


def _patterns(path: Path, part: Schema) -> Iterator[tuple[Path, str]]:
    if isinstance(pattern := part.get("pattern"), str):
        yield (*path, "pattern"), pattern
    properties = part.get("patternProperties")
    for name in cast(Mapping[str, object], properties) if isinstance(properties, Mapping) else ():
        yield (*path, "patternProperties"), name


def is_object(root: Schema) -> bool:
    """Return whether the schema's root is an object, as strict formats of providers require."""
    return follow(root, root).get("type") == "object"


def _short(exc: Exception) -> str:
    text = str(getattr(exc, "message", None) or exc).split("\n", 1)[0]
    return text if len(text) <= 300 else text[:300] + "…"
