"""vLLM's structured outputs, as xgrammar reads a schema.

The whole output is held to it, so nothing is constrained where tools may be called. The model reads the schema
too: a grammar does not tell it what to write.

An engine compiles each grammar before it answers, and other grammars wait for that, plans among them. Schemas are
strangers' words, so what takes xgrammar seconds is left out (measured with 0.2.x on two cores): a string's length takes it
up to 3 s, 300 different ones minutes; an object's properties take it a time that grows with their square.
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
SUBSET = Subset(
    WORDS,
    takes_root_reference=True,
)
"""Without `pattern` and `format`: an engine reads them in a dialect of its own, and refuses some."""
LENGTHS = frozenset({"minLength", "maxLength"})
MOST_LENGTHS, LONGEST = 4, 128
"""Different lengths of strings in one grammar, and the longest of them."""
MOST_PROPERTIES, MOST_TOGETHER = 300, 2_000
"""Of one object; of all."""
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def translate(wanted: AnswerFormat, tools: Toolset) -> Translation:
    """For local engines."""
    if tools.offered:
        return in_words(wanted, "it would keep the model from calling tools")
    if wanted.schema is None:
        return Translation(wanted, instructions(wanted))
    try:
        schema = hold_to(wanted.schema)
    except NotExpressible as exc:
        return in_words(wanted, str(exc))
    return Translation(replace(wanted, schema=schema), instructions(wanted))


def hold_to(schema: Schema) -> dict[str, Any]:
    """What decoding is held to for a schema that was checked (`limits.py`): it accepts no less.

    Raises:
        NotExpressible: nothing that an engine compiles soon.
    """
    held = narrow(schema, SUBSET).schema
    parts = [part for _, part in subschemas(held)]
    counts = [len(cast(Schema, part.get("properties", {}))) for part in parts]
    if max(counts) > MOST_PROPERTIES or sum(counts) > MOST_TOGETHER:
        raise NotExpressible(
            f"it has more than {MOST_PROPERTIES} properties in one object, or {MOST_TOGETHER:,} in all"
        )
    lengths = {(word, part[word]) for part in parts for word in LENGTHS & part.keys()}
    if len(lengths) > MOST_LENGTHS or any(length > LONGEST for _, length in lengths):
        return narrow(schema, dataclasses.replace(SUBSET, words=WORDS - LENGTHS)).schema
    return held


def hold_calls_to(parameters: Sequence[Schema | None]) -> list[dict[str, Any]]:
    """The same for the arguments of several tools, whose schemas were not checked: any object where one is too much.
    Their `$defs` can be put together.
    """
    defined, held = dict[str, object](), list[dict[str, Any]]()
    for each in parameters:
        schema = _hold_call_to(each)
        own: dict[str, object] = schema.get("$defs", {})
        is_clear = all(defined.setdefault(name, part) == part for name, part in own.items())
        held.append(schema if is_clear else ANY_OBJECT)
    try:
        hold_to({"anyOf": held})
    except NotExpressible:
        return [ANY_OBJECT for _ in held]
    return held


def _hold_call_to(parameters: Schema | None) -> dict[str, Any]:
    if not parameters:
        return ANY_OBJECT
    try:
        check_schema(parameters)
        held = hold_to(parameters)
    except (SchemaFault, NotExpressible):
        return ANY_OBJECT
    refers_to_root = any(part.get("$ref") == "#" for _, part in subschemas(held))
    return ANY_OBJECT if refers_to_root else held
