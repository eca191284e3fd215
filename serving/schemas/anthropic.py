"""Anthropic's `output_config.format`:
https://platform.claude.com/docs/en/build-with-claude/structured-outputs.

Anthropic supports only objects without additional properties. A schema that explicitly allows additional
properties goes into the prompt instead.
"""

from typing import Any

from conductor.model.call import AnswerFormat
from conductor.model.messages import Toolset
from serving.schemas.subset import NotExpressible, Subset, narrow
from serving.schemas.translation import Translation, in_part, in_words
from serving.schemas.walk import subschemas

FORMATS = ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"]
WORDS = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "format", "items",
    "minItems", "properties", "required", "title", "type",
})  # fmt: skip
SUBSET = Subset(WORDS, frozenset(FORMATS), takes_type_lists=False, takes_recursion=False)


def translate(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    if answer_format.schema is None:
        return in_words(answer_format)
    try:
        narrowed = narrow(answer_format.schema, SUBSET)
        _close(narrowed.schema, narrowed.lost_keywords)
    except NotExpressible as exc:
        return in_words(answer_format, str(exc))
    return in_part(answer_format, narrowed.schema, narrowed.lost_keywords)


def _close(schema: dict[str, Any], lost_keywords: set[str]) -> None:
    """Forbid additional properties in every object, and limit `minItems` to 1. Raise NotExpressible if that
    loses meaning, or a type is missing.
    """
    for _, part in subschemas(schema):
        assert isinstance(part, dict), "`narrow` returns dicts"
        if part.get("minItems", 0) not in (0, 1):
            lost_keywords.add("minItems")
            part["minItems"] = 1
        if not part.keys() & {"$ref", "anyOf", "const", "enum", "type"}:
            raise NotExpressible("A subschema has no `type`, `enum`, `const`, `anyOf` or `$ref`.")
        if part.get("type") != "object" and "properties" not in part:
            continue
        properties = set(part.get("properties", ()))
        if part.get("additionalProperties", False) is not False or not properties.issuperset(
            part.get("required", ())
        ):
            raise NotExpressible("An object in the schema allows additional properties.")
        if not properties and "additionalProperties" not in part:
            raise NotExpressible("An object in the schema has no `properties`.")
        part["additionalProperties"] = False


def output_format(answer_format: AnswerFormat) -> dict[str, object]:
    return {"type": "json_schema", "schema": answer_format.schema}
