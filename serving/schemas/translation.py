"""What a provider is sent of the format that a client wants, and what its model is told in words instead."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from conductor.model.call import AnswerFormat
from conductor.model.messages import Toolset


@dataclass(frozen=True, slots=True)
class Translation:
    """The two parts of it.

    Args:
        native: for the provider's own field, in its own subset of JSON Schema; None: nothing is sent there.
        instructions: for the prompt; empty: the provider's field says all of it.
        notes: for the record.
    """

    native: AnswerFormat | None
    instructions: str = ""
    notes: tuple[str, ...] = ()


Translate = Callable[[AnswerFormat, Toolset], Translation]
"""For one sort of provider. The tools are those that the answering call may make use of."""


def in_words(wanted: AnswerFormat, why: str = "") -> Translation:
    """Where the provider is told nothing but words; `why` is for the record."""
    notes = (f"The answer's format was asked for in words: {why}.",) if why else ()
    return Translation(None, instructions(wanted), notes)


def in_part(wanted: AnswerFormat, schema: Mapping[str, Any], lost: Collection[str]) -> Translation:
    """`schema` for the provider, and the words that its language lacks for the prompt."""
    native = replace(wanted, schema=schema)
    if not lost:
        return Translation(native)
    note = f"Of the answer's schema, {', '.join(sorted(lost))} was asked for in words."
    return Translation(native, instructions(wanted), (note,))


def instructions(wanted: AnswerFormat) -> str:
    """The format, for a model to read."""
    alone = "and nothing else: no prose, no Markdown, no code fence"
    if wanted.schema is None:
        return f"Your final answer is one JSON object {alone}."
    purpose = f" {wanted.description}" if wanted.description else ""
    schema = json.dumps(wanted.schema, ensure_ascii=False)
    return f"Your final answer is one JSON value {alone}.{purpose} It holds to this JSON Schema:\n{schema}"


def translate_to_words(wanted: AnswerFormat, tools: Toolset) -> Translation:
    """For workers without a field for it."""
    return in_words(wanted)
