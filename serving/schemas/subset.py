"""Translation of a JSON Schema into the keywords that one provider supports.

Unsupported keywords are dropped. The translated schema may accept more than the original, so the original
also goes into the prompt. A schema that would lose its meaning is not translated at all.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from serving.schemas.complexity import circles, leads_back
from serving.schemas.walk import LISTS, MAPS, ONE, Schema, subschemas, target

Json = dict[str, Any]
DEFINED = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
ANNOTATIONS = frozenset(
    ["$comment", "$id", "$schema", "default", "deprecated", "examples", "readOnly", "title", "writeOnly"]
)
"""Keywords that do not restrict an answer."""
OF_TYPE = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"format", "pattern", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Keywords that apply only to values of one type."""


class NotExpressible(ValueError):
    """The provider's keywords cannot express the schema, for the reason in a sentence."""


@dataclass(frozen=True, slots=True)
class Subset:
    """The part of JSON Schema that a provider supports.

    Args:
        words: supported keywords.
        formats: supported values of `format`, or None for any.
        takes_type_lists: whether `type` may be a list.
        takes_recursion: whether a definition may refer to itself, directly or through other definitions.
        takes_root_reference: whether `$ref` may be `#`, the whole schema.
    """

    words: frozenset[str]
    formats: frozenset[str] | None = None
    takes_type_lists: bool = True
    takes_recursion: bool = True
    takes_root_reference: bool = False


@dataclass(slots=True)
class Narrowed:
    """Schema that uses only keywords that a provider supports."""

    schema: Json
    lost_keywords: set[str] = field(default_factory=set[str])
    """Keywords that were dropped."""


def narrow(schema: Schema, subset: Subset) -> Narrowed:
    """Translate `schema` into the keywords of `subset`. Raise NotExpressible if it would lose its meaning."""
    if not subset.takes_recursion and is_recursive(schema):
        raise NotExpressible("The schema is recursive.")
    narrowed = Narrowed({})
    narrowed.schema = _narrow(schema, subset, narrowed.lost_keywords)
    return narrowed


def is_recursive(schema: Schema) -> bool:
    """Return whether a definition refers to itself, directly or through other definitions."""
    circle_of = circles(schema)
    references = [
        (part, target(schema, ref))
        for _, part in subschemas(schema)
        if isinstance(ref := part.get("$ref"), str)
    ]
    return any(
        definition is not None and leads_back(part, definition, circle_of) for part, definition in references
    )


def _narrow(schema: Schema, subset: Subset, lost_keywords: set[str]) -> Json:
    schema = _rewrite(schema, subset, lost_keywords)
    result: Json = {}
    for word, value in schema.items():
        if word in ANNOTATIONS and word not in subset.words:
            continue
        if word not in subset.words or not _is_supported(word, value, subset):
            lost_keywords.add(word)
        else:
            result[word] = _inside(word, value, subset, lost_keywords)
    return result


def _is_supported(word: str, value: object, subset: Subset) -> bool:
    if word == "format":
        return subset.formats is None or value in subset.formats
    if word in ("exclusiveMinimum", "exclusiveMaximum"):
        return not isinstance(value, bool)  # draft 4
    return not (word == "items" and isinstance(value, Sequence))  # before 2020-12


def _inside(word: str, value: object, subset: Subset, lost_keywords: set[str]) -> object:
    """Return the value of the keyword `word` with all schemas inside it narrowed."""
    if word in MAPS and isinstance(value, Mapping):
        return {
            name: _part(each, subset, lost_keywords)
            for name, each in cast(Mapping[str, object], value).items()
        }
    if word in LISTS and isinstance(value, Sequence):
        return [_part(each, subset, lost_keywords) for each in cast(Sequence[object], value)]
    return _part(value, subset, lost_keywords) if word in ONE else value


def _part(value: object, subset: Subset, lost_keywords: set[str]) -> object:
    return _narrow(cast(Schema, value), subset, lost_keywords) if isinstance(value, Mapping) else value


def _rewrite(schema: Schema, subset: Subset, lost_keywords: set[str]) -> Schema:
    """Rewrite `schema` with keywords that more providers support. The meaning stays the same or nearly so."""
    result = dict(schema)
    if "definitions" in result and "$defs" not in result:
        result["$defs"] = result.pop("definitions")
    if "const" in result and "const" not in subset.words:
        result["enum"] = [result.pop("const")]
    if "oneOf" in result and "oneOf" not in subset.words and "anyOf" not in result:
        result["anyOf"] = result.pop("oneOf")
        lost_keywords.add("oneOf")
    alone = result.get("allOf")
    if (
        "allOf" not in subset.words
        and isinstance(alone, Sequence)
        and len(cast(Sequence[object], alone)) == 1
    ):
        result = _merge(result, cast(Sequence[object], result.pop("allOf"))[0])
    if isinstance(ref := result.get("$ref"), str):
        result["$ref"] = _reference(ref, subset)
    if isinstance(types := result.get("type"), list) and not subset.takes_type_lists:
        result = _split(result, cast(list[str], types))
    return result


def _merge(outer: Json, inner: object) -> Json:
    """Merge a schema with the only one in its `allOf`, which stays if both have a keyword."""
    if not isinstance(inner, Mapping):
        return outer
    inner_schema = cast(Schema, inner)
    both = outer.keys() & inner_schema.keys() - ANNOTATIONS - {"description"}
    return {**outer, "allOf": [inner]} if both else {**inner_schema, **outer}


def _reference(ref: str, subset: Subset) -> str:
    if ref == "#" and subset.takes_root_reference:
        return ref
    match = DEFINED.fullmatch(ref)
    if match is None:
        raise NotExpressible("The schema refers to a part that is not in `$defs`.")
    return f"#/$defs/{match[1]}"


def _split(schema: Json, types: list[str]) -> Json:
    """Convert a list of types to an `anyOf` with a schema per type, each with its keywords."""
    if "anyOf" in schema or "$ref" in schema:
        return {word: value for word, value in schema.items() if word != "type"}
    shared = {word: schema.pop(word) for word in ("$defs", "description", "title") if word in schema}
    about = {word for words in OF_TYPE.values() for word in words}
    plain = {word: value for word, value in schema.items() if word not in about and word != "type"}
    kinds: list[Json] = []
    for each in types:
        own = OF_TYPE.get("number" if each == "integer" else each, set[str]())
        kinds.append({"type": each} | plain | {word: schema[word] for word in schema.keys() & own})
    return shared | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
