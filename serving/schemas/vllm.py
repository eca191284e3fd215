"""vLLM's structured outputs, compiled by xgrammar.

A grammar constrains the whole output, so it is not used if the model may call tools. The schema also goes
into the prompt, because a grammar does not tell the model what to write.

An engine compiles each grammar before it answers. Meanwhile, other requests with grammars wait, including
requests for plans. The schemas come from clients, so everything that takes xgrammar seconds to compile is
dropped. Measured with xgrammar 0.2.x on two cores, a limit for the length of a string takes up to 3 s, and
300 different limits take minutes. The time for an object grows with the square of its number of properties.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from conductor.model.call import AnswerFormat
from conductor.model.messages import Toolset
from serving.schemas.limits import SchemaFault, check_schema
from serving.schemas.subset import NotExpressible, Subset, narrow
from serving.schemas.translation import Translation, in_words, instructions
from serving.schemas.walk import Schema, subschemas

WORDS = frozenset({
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum",
    "oneOf", "prefixItems", "properties", "required", "type",
})  # fmt: skip
SUBSET = Subset(WORDS, takes_root_reference=True)
"""Supported keywords. `pattern` and `format` are not among them, because an engine has its own dialect of
regular expressions and rejects some patterns and formats."""
LENGTHS = frozenset({"minLength", "maxLength"})
MOST_LENGTHS, LONGEST = 4, 128
"""Maximum number of different string length limits in one grammar, and the largest supported limit."""
MOST_PROPERTIES, MOST_TOGETHER = 300, 2_000
"""Maximum number of properties of one object, and of all objects in a schema together."""
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def translate(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    if tools.offered:
        return in_words(
            answer_format, "A constraint on the answer would prevent the model from calling tools."
        )
    if answer_format.schema is None:
        return Translation(answer_format, instructions(answer_format))
    try:
        schema = hold_to(answer_format.schema)
    except NotExpressible as exc:
        return in_words(answer_format, str(exc))
    return Translation(replace(answer_format, schema=schema), instructions(answer_format))


def hold_to(schema: Schema) -> dict[str, Any]:
    """Return the schema for the engine, which may accept more than `schema`. Raise NotExpressible if it would
    compile too slowly. `limits.check_schema` must have accepted `schema`.
    """
    narrowed = narrow(schema, SUBSET).schema
    parts = [part for _, part in subschemas(narrowed)]
    counts = [len(cast(Schema, part.get("properties", {}))) for part in parts]
    if max(counts) > MOST_PROPERTIES or sum(counts) > MOST_TOGETHER:
        raise NotExpressible(
            f"The schema has more than {MOST_PROPERTIES} properties in one object, or more than {MOST_TOGETHER:,} in total."
        )
    lengths = {(word, part[word]) for part in parts for word in LENGTHS & part.keys()}
    if len(lengths) > MOST_LENGTHS or any(length > LONGEST for _, length in lengths):
        return narrow(schema, dataclasses.replace(SUBSET, words=WORDS - LENGTHS)).schema
    return narrowed


def hold_calls_to(parameters: Sequence[Schema | None]) -> list[dict[str, Any]]:
    """Return the schemas for unchecked `parameters` of several tools, with disjoint `$defs`. Invalid or slow
    ones become any object.
    """
    defined, constraints = dict[str, object](), list[dict[str, Any]]()
    for each in parameters:
        schema = _hold_call_to(each)
        own: dict[str, object] = schema.get("$defs", {})
        is_clear = all(defined.setdefault(name, part) == part for name, part in own.items())
        constraints.append(schema if is_clear else ANY_OBJECT)
    try:
        hold_to({"anyOf": constraints})
    except NotExpressible:
        return [ANY_OBJECT for _ in constraints]
    return constraints


def _hold_call_to(parameters: Schema | None) -> dict[str, Any]:
    if not parameters:
        return ANY_OBJECT
    try:
        check_schema(parameters)
        constraint = hold_to(parameters)
    except (SchemaFault, NotExpressible):
        return ANY_OBJECT
    refers_to_root = any(part.get("$ref") == "#" for _, part in subschemas(constraint))
    return ANY_OBJECT if refers_to_root else constraint
