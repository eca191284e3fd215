"""vLLM's structured outputs, as xgrammar reads a schema.

The whole output is held to it, so nothing is constrained where tools may be called. The model reads the schema
too: a grammar does not tell it what to write.
"""

from dataclasses import replace

from conductor.model.answer_format import AnswerFormat
from conductor.model.tools import Toolset
from serving.schemas.subset import NotExpressible, Subset, narrow
from serving.schemas.translation import Translation, in_words, instructions

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


def translate(wanted: AnswerFormat, tools: Toolset) -> Translation:
    """For local engines."""
    if tools.offered:
        return in_words(wanted, "it would keep the model from calling tools")
    if wanted.schema is None:
        return Translation(wanted, instructions(wanted))
    try:
        schema = narrow(wanted.schema, SUBSET).schema
    except NotExpressible as exc:
        return in_words(wanted, str(exc))
    return Translation(replace(wanted, schema=schema), instructions(wanted))
