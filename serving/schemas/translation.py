"""Translation of an answer format into the provider's own field and instructions in the prompt."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from conductor.model.call import AnswerFormat
from conductor.model.messages import Toolset


@dataclass(frozen=True, slots=True)
class Translation:
    """Answer format, split between the provider's field, a text for the prompt, and notes for the record."""

    native: AnswerFormat | None
    instructions: str = ""
    notes: tuple[str, ...] = ()


Translate = Callable[[AnswerFormat, Toolset], Translation]
"""Function that translates an answer format for one kind of provider. The tools are those of the same
call."""


def in_words(answer_format: AnswerFormat, why: str = "") -> Translation:
    """Put the whole format into the prompt. `why` is a sentence for the record, if any."""
    notes = (
        (f"The format of the answer was added to the prompt instead of the provider's field. {why}",)
        if why
        else ()
    )
    return Translation(None, instructions(answer_format), notes)


def in_part(
    answer_format: AnswerFormat, schema: Mapping[str, Any], lost_keywords: Collection[str]
) -> Translation:
    """Send `schema` to the provider, and put the whole format into the prompt if keywords were lost."""
    native = replace(answer_format, schema=schema)
    if not lost_keywords:
        return Translation(native)
    note = f"The schema of the answer was also added to the prompt, because the provider does not support these keywords: {', '.join(sorted(lost_keywords))}."
    return Translation(native, instructions(answer_format), (note,))


def instructions(answer_format: AnswerFormat) -> str:
    alone = "and nothing else: no prose, no Markdown, no code fence"
    if answer_format.schema is None:
        return f"Your final answer is one JSON object {alone}."
    purpose = f" {answer_format.description}" if answer_format.description else ""
    schema = json.dumps(answer_format.schema, ensure_ascii=False)
    return f"Your final answer is one JSON value {alone}.{purpose} It must match this JSON Schema:\n{schema}"


def translate_for_plugin(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    """Translate an answer format for a worker in Python: it gets the format, and the same in the prompt. A program that
    cannot write JSON can refuse the call.
    """
    return Translation(answer_format, instructions(answer_format))


def translate_to_words(answer_format: AnswerFormat, tools: Toolset) -> Translation:
    """Translate an answer format for workers that have no field for it: everything goes into the prompt."""
    return in_words(answer_format)
