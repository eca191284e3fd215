"""Random JSON schemas with valid values, and an independent validator."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

Json = dict[str, Any]
SchemaAndValue = tuple[Json, Any]
"""A schema and a valid value."""
NAMES = ["a", "b", "name", "type", "größe", "$ref", "items"]
SAMPLES = {
    "date": "2026-11-23", "uuid": "c2ab7a5e-0f0f-4d0e-9b57-1d3a2d2f8a11", "ipv4": "127.0.0.1", "date-time": "2026-11-23T10:00:00Z",
    "email": "a@b.example", "uri": "https://a.example/x",
}  # fmt: skip
PATTERNS = {r"^[a-z]{2,5}$": "abc", r"^\d+-\d+$": "12-34", r"^(?!x)\w+$": "yes", "é": "café"}


@st.composite
def strings(draw: st.DrawFn) -> SchemaAndValue:
    match draw(st.integers(0, 5)):
        case 0:
            name = draw(st.sampled_from(sorted(SAMPLES)))
            return {"type": "string", "format": name}, SAMPLES[name]
        case 1:
            pattern = draw(st.sampled_from(sorted(PATTERNS)))
            return {"type": "string", "pattern": pattern}, PATTERNS[pattern]
        case 2:
            values = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3, unique=True))
            return {"enum": values}, draw(st.sampled_from(values))
        case 3:
            value = draw(st.text(min_size=2, max_size=6))
            return {"type": "string", "minLength": 2, "maxLength": 6}, value
        case 4:
            value = draw(st.text(max_size=5))
            return {"const": value}, value
        case _:
            return {"type": "string", "description": "Any words."}, draw(st.text(max_size=20))


@st.composite
def numbers(draw: st.DrawFn) -> SchemaAndValue:
    value = draw(st.integers(-(2**40), 2**40))
    match draw(st.integers(0, 3)):
        case 0:
            return {"type": "integer", "minimum": value - 3, "maximum": value + 3}, value
        case 1:
            return {"type": "number", "exclusiveMinimum": value - 1}, value + 0.5
        case 2:
            return {"type": "integer", "multipleOf": 5}, value * 5
        case _:
            return {"type": ["integer", "null"], "not": {"const": value + 1}}, draw(
                st.sampled_from([value, None])
            )


PLAIN = st.one_of(
    strings(),
    numbers(),
    st.booleans().map(lambda value: ({"type": "boolean"}, value)),
    st.just(({"type": "null"}, None)),
    st.just(({"$ref": "#/$defs/word"}, "word")),
    st.just(({"$ref": "#/$defs/chain"}, {"next": {"next": None}})),
)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[SchemaAndValue]) -> SchemaAndValue:
    schema, value = draw(inner)
    size = draw(st.integers(0, 2))
    limits = draw(
        st.sampled_from([{}, {"minItems": size}, {"maxItems": 3}, {"minItems": size, "maxItems": 4}])
    )
    if draw(st.booleans()):
        return {"type": "array", "items": schema} | limits, [value] * size
    other, second = draw(inner)
    return {"type": "array", "prefixItems": [schema, other], "minItems": 2}, [value, second]


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[SchemaAndValue]) -> SchemaAndValue:
    fields = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=4))
    required = list(fields) if draw(st.booleans()) else [name for name in fields if draw(st.booleans())]
    value = {name: each for name, (_, each) in fields.items() if name in required or draw(st.booleans())}
    properties = {name: schema for name, (schema, _) in fields.items()}
    schema = {"type": "object", "properties": properties, "required": required}
    more = draw(st.sampled_from([False, False, None, True, {"type": "integer"}]))
    return schema | ({} if more is None else {"additionalProperties": more}), value


@st.composite
def choices(draw: st.DrawFn, inner: st.SearchStrategy[SchemaAndValue]) -> SchemaAndValue:
    schemas = draw(st.lists(inner, min_size=1, max_size=3))
    words = draw(st.sampled_from(["anyOf", "allOf"]))
    if words == "allOf":
        return {"allOf": [schemas[0][0]], "description": "One of its kind."}, schemas[0][1]
    return {words: [schema for schema, _ in schemas]}, draw(st.sampled_from([value for _, value in schemas]))


def larger(inner: st.SearchStrategy[SchemaAndValue]) -> st.SearchStrategy[SchemaAndValue]:
    return st.one_of(arrays(inner), objects(inner), choices(inner))


DEFINITIONS: Json = {
    "word": {"type": "string", "minLength": 1},
    "chain": {
        "type": "object", "required": ["next"], "additionalProperties": False,
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/chain"}, {"type": "null"}]}},
    },
}  # fmt: skip
ROOTS = objects(st.recursive(PLAIN, larger, max_leaves=6))


def whole(pair: SchemaAndValue) -> SchemaAndValue:
    """Add the definitions that the schema refers to."""
    schema, value = pair
    used = [name for name in DEFINITIONS if f"#/$defs/{name}" in json.dumps(schema)]
    return schema | ({"$defs": {name: DEFINITIONS[name] for name in used}} if used else {}), value


def is_right(schema: Json, value: object) -> bool:
    """Validate with another library than the server does."""
    return Draft202012Validator(schema, format_checker=FormatChecker()).is_valid(value)


def refuse(word: str) -> Any:
    raise ValueError(word)


def once(pairs: Sequence[tuple[str, Any]]) -> Json:
    value = dict(pairs)
    assert len(value) == len(pairs), "a name is there twice"
    return value


def is_right_text(schema: Json, text: str) -> bool:
    """Return whether the text is strict JSON that satisfies the schema."""
    try:
        value = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, AssertionError):
        return False
    return is_right(schema, value)
