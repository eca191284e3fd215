"""OpenAI's `response_format`, and that of servers like it.

Strict schemas: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas. A schema that
OpenAI does not take as strict is sent as one that is not; other servers are sent it as it stands, and their
models read it too: many of them hold decoding to a schema that the model is never shown.
"""

from typing import Any

from msgspec.structs import replace

from conductor.model.call import AnswerFormat
from conductor.model.messages import Toolset
from serving.schemas.subset import NotExpressible, Subset, narrow
from serving.schemas.translation import Translation, in_part, in_words, instructions
from serving.schemas.walk import Schema, subschemas

FORMATS = ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"]
WORDS = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems", "minimum", "multipleOf",
    "pattern", "properties", "required", "title", "type",
})  # fmt: skip
SUBSET = Subset(
    WORDS,
    frozenset(FORMATS),
    takes_root_reference=True,
)
MOST_LEVELS = 10
"""Of objects and lists in one another."""
SAYS_WHAT = frozenset(["$ref", "anyOf", "const", "enum", "type"])
"""A part of a strict schema has one of these."""


def translate(wanted: AnswerFormat, tools: Toolset) -> Translation:
    """For api.openai.com and Azure."""
    if wanted.schema is None:  # OpenAI refuses it where the prompt does not speak of JSON
        return Translation(wanted, instructions(wanted))
    try:
        narrowed = narrow(wanted.schema, SUBSET)
        schema = _alone(narrowed.schema, narrowed.lost)
        _check_strict(schema)
    except NotExpressible as exc:
        note = f"The answer's schema was sent as one that is not strict: {exc}."
        return Translation(replace(wanted, strict=False), "", (note,) if wanted.strict else ())
    if not wanted.strict:
        return Translation(wanted)
    return in_part(wanted, schema, narrowed.lost)


def translate_compatible(wanted: AnswerFormat, tools: Toolset) -> Translation:
    """For other servers that speak OpenAI's language."""
    if tools.offered:
        return in_words(wanted, "few servers take one beside tools")
    return Translation(wanted, instructions(wanted))


def _alone(schema: dict[str, Any], lost: set[str]) -> dict[str, Any]:
    """A `$ref` stands alone."""
    for _, part in subschemas(schema):
        assert isinstance(part, dict), "it was just written"
        if "$ref" in part and part.keys() - {"$ref", "$defs"}:
            lost |= part.keys() - {"$ref", "$defs", "description", "title"}
            for word in part.keys() - {"$ref", "$defs"}:
                del part[word]
    return schema


def _check_strict(schema: Schema) -> None:
    """Raise where OpenAI would not take it as strict.

    Raises:
        NotExpressible: saying why.
    """
    if schema.get("type") != "object" or "anyOf" in schema:
        raise NotExpressible("its root is no plain object")
    for path, part in subschemas(schema):
        if not part.keys() & SAYS_WHAT:
            raise NotExpressible("a part of it does not say what it is")
        if sum(word in ("properties", "items") for word in path[::2]) > MOST_LEVELS:
            raise NotExpressible("it is too deep")
        kind = part.get("type")
        if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in part:
            if part.get("additionalProperties") is not False or "properties" not in part:
                raise NotExpressible("an object in it is open")
            if set(part.get("required", ())) != set(part.get("properties", ())):
                raise NotExpressible("a property of it may be left out")


def response_format(wanted: AnswerFormat) -> dict[str, object]:
    """The field of a chat completion."""
    if wanted.schema is None:
        return {"type": "json_object"}
    schema: dict[str, object] = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
    if wanted.description:
        schema["description"] = wanted.description
    return {"type": "json_schema", "json_schema": schema}
