"""Translation of an answer format: what goes into the provider's field, and what goes into the prompt."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from conductor.model.call import AnswerFormat
from conductor.model.messages import Toolset


@dataclass(frozen=True, slots=True)
class Translation:
    """Answer format, split between the provider's field and the prompt.

    Args:
        native: for the provider's own field, in its subset of JSON Schema, or None if the field is not sent.
        instructions: for the prompt, or "" if the provider's field expresses all of it.
        notes: for the record.
    """

    native: AnswerFormat | None
    instructions: str = ""
    notes: tuple[str, ...] = ()


Translate = Callable[[AnswerFormat, Toolset], Translation]
"""Translation for one kind of provider. The tools are those that the answering call may use."""


def in_words(wanted: AnswerFormat, why: str = "") -> Translation:
    """Put the whole format into the prompt. `why` is the reason for the record."""
    notes = (
        (f"The answer's format was put into the prompt instead of the provider's field: {why}.",)
        if why
        else ()
    )
    return Translation(None, instructions(wanted), notes)


def in_part(wanted: AnswerFormat, schema: Mapping[str, Any], lost_keywords: Collection[str]) -> Translation:
    """Send `schema` to the provider, and put the whole format into the prompt if keywords were lost."""
    native = replace(wanted, schema=schema)
    if not lost_keywords:
        return Translation(native)
    note = (
        f"Keywords of the answer's schema that were put into the prompt: {', '.join(sorted(lost_keywords))}."
    )
    return Translation(native, instructions(wanted), (note,))


def instructions(wanted: AnswerFormat) -> str:
    """Return the format as a text for the prompt."""
    alone = "and nothing else: no prose, no Markdown, no code fence"
    if wanted.schema is None:
        return f"Your final answer is one JSON object {alone}."
    purpose = f" {wanted.description}" if wanted.description else ""
    schema = json.dumps(wanted.schema, ensure_ascii=False)
    return f"Your final answer is one JSON value {alone}.{purpose} It must match this JSON Schema:\n{schema}"


def translate_to_words(wanted: AnswerFormat, tools: Toolset) -> Translation:
    """Translate for workers without a field for answer formats."""
    return in_words(wanted)
