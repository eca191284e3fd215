"""OpenAI's `response_format`, and that of compatible servers.

https://platform.openai.com/docs/guides/structured-outputs#supported-schemas describes strict schemas. A
schema that does not fit this description is sent with `strict: false`. Compatible servers receive the
client's schema unchanged. It is also added to the prompt, because many of these servers do not show the
schema to the model.
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
SUBSET = Subset(WORDS, frozenset(FORMATS), takes_root_reference=True)
MOST_LEVELS = 10
"""Maximum depth of nested objects and lists in a strict schema."""
SAYS_WHAT = frozenset(["$ref", "anyOf", "const", "enum", "type"])
"""Keywords that give a value's type. Every subschema of a strict schema must have one of them."""


def translate(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    if answer_format.schema is None:  # OpenAI rejects this format if the prompt does not mention JSON
        return Translation(answer_format, instructions(answer_format))
    try:
        narrowed = narrow(answer_format.schema, SUBSET)
        schema = _alone(narrowed.schema, narrowed.lost_keywords)
        _check_strict(schema)
    except NotExpressible as exc:
        note = f"The schema of the answer was sent with `strict: false`. {exc}"
        return Translation(replace(answer_format, strict=False), "", (note,) if answer_format.strict else ())
    if not answer_format.strict:
        return Translation(answer_format)
    return in_part(answer_format, schema, narrowed.lost_keywords)


def translate_compatible(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    """Translate an answer format for other servers with OpenAI's API."""
    if tools.offered:
        return in_words(answer_format, "Few servers accept a response format together with tools.")
    return Translation(answer_format, instructions(answer_format))


def _alone(schema: dict[str, Any], lost_keywords: set[str]) -> dict[str, Any]:
    """Remove all keywords next to a `$ref`, and add them to `lost_keywords`."""
    for _, part in subschemas(schema):
        assert isinstance(part, dict), "`narrow` returns dicts"
        if "$ref" in part and part.keys() - {"$ref", "$defs"}:
            lost_keywords |= part.keys() - {"$ref", "$defs", "description", "title"}
            for word in part.keys() - {"$ref", "$defs"}:
                del part[word]
    return schema


def _check_strict(schema: Schema) -> None:
    """Check that OpenAI accepts `schema` as strict. The NotExpressible says why not."""
    if schema.get("type") != "object" or "anyOf" in schema:
        raise NotExpressible("The root of the schema is not a plain object.")
    for path, part in subschemas(schema):
        if not part.keys() & SAYS_WHAT:
            raise NotExpressible("A subschema has no `type`, `enum`, `const`, `anyOf` or `$ref`.")
        if sum(word in ("properties", "items") for word in path[::2]) > MOST_LEVELS:
            raise NotExpressible(f"The schema is nested more than {MOST_LEVELS} levels deep.")
        kind = part.get("type")
        if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in part:
            if part.get("additionalProperties") is not False or "properties" not in part:
                raise NotExpressible("An object in the schema allows additional properties.")
            if set(part.get("required", ())) != set(part.get("properties", ())):
                raise NotExpressible("A property in the schema is optional.")


def response_format(answer_format: AnswerFormat) -> dict[str, object]:
    if answer_format.schema is None:
        return {"type": "json_object"}
    schema: dict[str, object] = {
        "name": answer_format.name,
        "schema": answer_format.schema,
        "strict": answer_format.strict,
    }
    if answer_format.description:
        schema["description"] = answer_format.description
    return {"type": "json_schema", "json_schema": schema}
