"""One text or several, as `prompt` and `input` have them. Lists of tokens are refused: they are numbers of a
vocabulary that nobody here knows.
"""

from typing import Annotated, cast

from pydantic import BeforeValidator, Field

from conductor.model.messages import Message

MOST_INPUTS = 2048


def _texts(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and any(
        isinstance(each, int | list) for each in cast(list[object], value)[:1]
    ):
        raise ValueError(
            "takes text, or a list of texts, and no numbers of tokens. Switch that off in your client"
        )
    return cast(object, value)


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS, fail_fast=True)],
    BeforeValidator(_texts),
]


def messages(texts: list[str]) -> tuple[Message, ...]:
    """A message for each."""
    return tuple(Message.of("user", text) for text in texts)
