"""The fields `prompt` and `input`: one text or several.

A `prompt` may also be token ids, which go to the worker unchanged. An `input` may not.
"""

from collections.abc import Sequence
from typing import Annotated, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from conductor.model.messages import Message

MOST_INPUTS = 2048


def _texts(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and any(
        isinstance(each, int | list) for each in cast(list[object], value)[:1]
    ):
        raise ValueError(
            "must be a string or a list of strings, not token ids. Turn off tokenization in your client"
        )
    return cast(object, value)


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS, fail_fast=True)],
    BeforeValidator(_texts),
]


def _sort(value: object) -> str:
    """Return the kind of a prompt: `texts`, `tokens` or `token lists`."""
    first = next(iter(cast(list[object], value)), None) if isinstance(value, list) else None
    return "tokens" if isinstance(first, int) else "token lists" if isinstance(first, list) else "texts"


def _alone(tokens: list[int]) -> list[list[int]]:
    return [tokens]


Token = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, max_length=MOST_INPUTS, fail_fast=True)]
Prompts = Annotated[
    Annotated[Texts, Tag("texts")]
    | Annotated[Tokens, AfterValidator(_alone), Tag("tokens")]
    | Annotated[TokenLists, Tag("token lists")],
    Discriminator(_sort),
]
"""Prompts of one kind: texts, or lists of token ids."""


def messages(texts: Sequence[str]) -> tuple[Message, ...]:
    return tuple(Message.of("user", text) for text in texts)
