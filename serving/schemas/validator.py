"""Check that an answer is JSON and matches the client's schema. Both the schema and the answer are untrusted.

References to other documents are never fetched. Patterns run in a linear-time regular expression engine. It
does not support look-around and back-references, so patterns with these run in a second engine with a limited
number of steps. A text that exceeds this limit does not match.
"""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, RegexOptions

from conductor.errors import quote
from conductor.model.call import AnswerFormat
from serving.schemas.complexity import unroll
from serving.schemas.walk import Schema

PATTERN_BYTES = 2_100_000
"""Maximum size of a compiled pattern, in bytes."""
BACKTRACKS = 10_000
DIGITS = 300
"""Maximum number of digits of an integer. Most parsers cannot represent larger ones as finite numbers."""
MOST_CHARS = 4_000_000
"""Maximum length of an answer, in characters."""
FAULT_CHARS = 400
"""Maximum length of an error message, in characters."""


class _Unreadable(ValueError):
    """The text is not JSON, or different parsers would read it differently."""


def _refuse_fetching(uri: str) -> NoReturn:
    raise ValueError(f"references are not fetched: {uri}")


def compile_schema(schema: Schema) -> jsonschema_rs.Validator:
    """Compile `schema` into a validator. Raise ValueError if it is invalid, or a pattern too large."""
    return _compile(json.dumps(schema, ensure_ascii=False))


@lru_cache(maxsize=16)  # a schema with the most patterns takes 100 MB
def _compile(schema: str) -> jsonschema_rs.Validator:
    value: dict[str, Any] = json.loads(schema)
    try:
        return _with(value, RegexOptions(size_limit=PATTERN_BYTES))
    except ValueError:
        fancy = FancyRegexOptions(backtrack_limit=BACKTRACKS, size_limit=PATTERN_BYTES)
        return _with(value, fancy)


def _with(schema: dict[str, Any], patterns: RegexOptions | FancyRegexOptions) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        schema, validate_formats=True, retriever=_refuse_fetching, pattern_options=patterns
    )


def find_fault(text: str, answer_format: AnswerFormat) -> str | None:
    """Return an answer's first fault as a sentence for the model that wrote it, or None."""
    try:
        value = read_json(text)
    except _Unreadable as exc:
        return str(exc)
    if answer_format.schema is None:
        return None if isinstance(value, Mapping) else "The answer is not a JSON object."
    try:
        if compile_schema(answer_format.schema).is_valid(value):
            return None
        return _explain(answer_format.schema, value)
    except ValueError as exc:  # too deep
        return f"The answer cannot be checked: {_cut(str(exc))}."


def _explain(schema: Schema, value: object) -> str:
    """Return a sentence that says why `value` does not match. It tries every path, but only one level of
    recursion.
    """
    try:
        compile_schema(unroll(schema)).validate(value)
    except jsonschema_rs.ValidationError as exc:
        return _sentence(exc)
    return "The answer does not match the schema: a value that is nested too deeply to name is invalid."


def without_fences(text: str) -> str | None:
    """Return the content of the Markdown code fence around the whole text, or None if there is none."""
    head, _, body = text.strip().partition("\n")
    if head.removeprefix("```").strip().lower() not in ("", "json") or not head.startswith("```"):
        return None
    return body.removesuffix("```").strip() if body.endswith("```") else None


def read_json(text: str) -> object:
    """Parse JSON. Raise ValueError for text that other parsers would read differently."""
    if len(text) > MOST_CHARS:
        raise _Unreadable(f"The answer is longer than {MOST_CHARS:,} characters.")
    try:
        text.encode()
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_integer,
        )
        json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair
    except _Unreadable:
        raise
    except UnicodeEncodeError:
        raise _Unreadable("The answer contains half a surrogate pair, which is not a character.") from None
    except RecursionError:
        raise _Unreadable("The answer is nested too deeply.") from None
    except ValueError as exc:
        raise _Unreadable(f"The answer must be JSON and nothing else: {exc}.") from exc
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value: dict[str, object] = {}
    for name, each in pairs:
        if name in value:
            raise _Unreadable(f"The answer has the property {quote(name)} twice in one object.")
        value[name] = each
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise _Unreadable(f"{word} is not valid JSON.")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Unreadable(f"The number {quote(digits)} is too large.")
    return value


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise _Unreadable(f"The number {quote(digits)} is too large.")
    return int(digits)


def _sentence(exc: jsonschema_rs.ValidationError) -> str:
    place = ".".join(str(part) for part in exc.instance_path)
    where = f"At {place}: " if place else ""
    return f"The answer does not match the schema. {where}{_cut(exc.message)}."


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= FAULT_CHARS else f"{line[:FAULT_CHARS]}…"
