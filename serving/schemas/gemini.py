"""Gemini's `response_json_schema`: https://ai.google.dev/gemini-api/docs/structured-output.

Models before Gemini 3 cannot combine it with tools. If the request offers tools, the schema goes into the
prompt instead.
"""

from collections.abc import Mapping
from typing import Any

from conductor.model.call import AnswerFormat, Grammar
from conductor.model.messages import Toolset
from serving.schemas.subset import NotExpressible, Subset, narrow
from serving.schemas.translation import Translation, in_part, in_words, instructions

WORDS = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "description", "enum", "format", "items",
    "maxItems", "maximum", "minItems", "minimum", "oneOf", "prefixItems", "properties", "required",
    "title", "type",
})  # fmt: skip
SUBSET = Subset(WORDS, takes_recursion=False)


def translate(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    if tools.offered:
        return in_words(answer_format, "The model accepts no response format together with tools.")
    if answer_format.schema is None:
        return Translation(answer_format, instructions(answer_format))
    try:
        narrowed = narrow(answer_format.schema, SUBSET)
    except NotExpressible as exc:
        return in_words(answer_format, str(exc))
    return in_part(answer_format, narrowed.schema, narrowed.lost_keywords)


def answer_schema(
    answer_format: AnswerFormat | None, grammar: Grammar | None
) -> tuple[bool, Mapping[str, Any] | None]:
    """Return whether the answer must be JSON, and its schema, if any."""
    schema = answer_format.schema if answer_format else grammar.json_schema if grammar else None
    return answer_format is not None or schema is not None, schema
