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


def translate(wanted: AnswerFormat, tools: Toolset) -> Translation:
    if tools.offered:
        return in_words(wanted, "The model accepts no response format together with tools.")
    if wanted.schema is None:
        return Translation(wanted, instructions(wanted))
    try:
        narrowed = narrow(wanted.schema, SUBSET)
    except NotExpressible as exc:
        return in_words(wanted, str(exc))
    return in_part(wanted, narrowed.schema, narrowed.lost_keywords)


def answer_schema(
    wanted: AnswerFormat | None, grammar: Grammar | None
) -> tuple[bool, Mapping[str, Any] | None]:
    """Return whether the answer must be JSON, and its schema, if any."""
    schema = wanted.schema if wanted else grammar.json_schema if grammar else None
    return wanted is not None or schema is not None, schema
