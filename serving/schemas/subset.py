"""A JSON Schema in the words that one provider understands.

Words that it does not know are left out: what is left accepts more than the schema did, and the rest is told to
the model in the prompt. A schema whose meaning would be lost is not translated at all.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from serving.schemas.walk import LISTS, MAPS, ONE, Schema, subschemas, target
from serving.schemas.work import circles, leads_back

Json = dict[str, Any]
DEFINED = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
ANNOTATIONS = frozenset(
    ["$comment", "$id", "$schema", "default", "deprecated", "examples", "readOnly", "title", "writeOnly"]
)
"""They hold nothing of an answer back."""
OF_TYPE = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"format", "pattern", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Words that say something of one type only."""


class NotExpressible(ValueError):
    """The provider's words cannot say it; why, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Subset:
    """What a provider understands.

    Args:
        words: its keywords.
        formats: values of `format`; None: any.
        takes_type_lists: `type` may be a list.
        takes_recursion: a definition may lead back to itself.
        takes_root_reference: `$ref` may be `#`.
    """

    words: frozenset[str]
    formats: frozenset[str] | None = None
    takes_type_lists: bool = True
    takes_recursion: bool = True
    takes_root_reference: bool = False


@dataclass(slots=True)
class Narrowed:
    """A schema in a provider's words."""

    schema: Json
    lost: set[str] = field(default_factory=set[str])
    """What of it they cannot say."""


def narrow(schema: Schema, subset: Subset) -> Narrowed:
    """`schema` in the words of `subset`.

    Raises:
        NotExpressible: it would lose its meaning.
    """
    if not subset.takes_recursion and is_recursive(schema):
        raise NotExpressible("it refers to itself")
    narrowed = Narrowed({})
    narrowed.schema = _narrow(schema, subset, narrowed.lost)
    return narrowed


def is_recursive(schema: Schema) -> bool:
    """Whether a definition leads back to itself."""
    circle_of = circles(schema)
    named = [
        (part, target(schema, ref))
        for _, part in subschemas(schema)
        if isinstance(ref := part.get("$ref"), str)
    ]
    return any(there is not None and leads_back(part, there, circle_of) for part, there in named)


def _narrow(schema: Schema, subset: Subset, lost: set[str]) -> Json:
    schema = _rewrite(schema, subset, lost)
    said: Json = {}
    for word, value in schema.items():
        if word in ANNOTATIONS and word not in subset.words:
            continue
        if word not in subset.words or not _is_said(word, value, subset):
            lost.add(word)
        else:
            said[word] = _inside(word, value, subset, lost)
    return said


def _is_said(word: str, value: object, subset: Subset) -> bool:
    if word == "format":
        return subset.formats is None or value in subset.formats
    if word in ("exclusiveMinimum", "exclusiveMaximum"):
        return not isinstance(value, bool)  # draft 4
    return not (word == "items" and isinstance(value, Sequence))  # before 2020-12


def _inside(word: str, value: object, subset: Subset, lost: set[str]) -> object:
    """A keyword's value, the schemas in it narrowed too."""
    if word in MAPS and isinstance(value, Mapping):
        return {name: _part(each, subset, lost) for name, each in cast(Mapping[str, object], value).items()}
    if word in LISTS and isinstance(value, Sequence):
        return [_part(each, subset, lost) for each in cast(Sequence[object], value)]
    return _part(value, subset, lost) if word in ONE else value


def _part(value: object, subset: Subset, lost: set[str]) -> object:
    return _narrow(cast(Schema, value), subset, lost) if isinstance(value, Mapping) else value


def _rewrite(schema: Schema, subset: Subset, lost: set[str]) -> Schema:
    """The same, or nearly so, in words that more providers know."""
    said = dict(schema)
    if "definitions" in said and "$defs" not in said:
        said["$defs"] = said.pop("definitions")
    if "const" in said and "const" not in subset.words:
        said["enum"] = [said.pop("const")]
    if "oneOf" in said and "oneOf" not in subset.words and "anyOf" not in said:
        said["anyOf"] = said.pop("oneOf")
        lost.add("oneOf")
    alone = said.get("allOf")
    if (
        "allOf" not in subset.words
        and isinstance(alone, Sequence)
        and len(cast(Sequence[object], alone)) == 1
    ):
        said = _merge(said, cast(Sequence[object], said.pop("allOf"))[0])
    if isinstance(ref := said.get("$ref"), str):
        said["$ref"] = _reference(ref, subset)
    if isinstance(types := said.get("type"), list) and not subset.takes_type_lists:
        said = _split(said, cast(list[str], types))
    return said


def _merge(said: Json, inner: object) -> Json:
    """A schema with the only one of its `allOf`, where they say nothing of the same."""
    if not isinstance(inner, Mapping):
        return said
    known = cast(Schema, inner)
    both = said.keys() & known.keys() - ANNOTATIONS - {"description"}
    return {**said, "allOf": [inner]} if both else {**known, **said}


def _reference(ref: str, subset: Subset) -> str:
    if ref == "#" and subset.takes_root_reference:
        return ref
    named = DEFINED.fullmatch(ref)
    if named is None:
        raise NotExpressible("it refers to a part that is no definition")
    return f"#/$defs/{named[1]}"


def _split(said: Json, types: list[str]) -> Json:
    """A list of types as an `anyOf`, each with the words that are about it."""
    if "anyOf" in said or "$ref" in said:
        return {word: value for word, value in said.items() if word != "type"}
    kept = {word: said.pop(word) for word in ("$defs", "description", "title") if word in said}
    about = {word for words in OF_TYPE.values() for word in words}
    plain = {word: value for word, value in said.items() if word not in about and word != "type"}
    kinds: list[Json] = []
    for each in types:
        own = OF_TYPE.get("number" if each == "integer" else each, set[str]())
        kinds.append({"type": each} | plain | {word: said[word] for word in said.keys() & own})
    return kept | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
