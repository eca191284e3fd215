"""OpenAI's fields that would change the answer and are not served yet: rejected by name, never dropped in
silence.

Only where the value would change the answer: an empty one asks for nothing, and clients send many of those
by default. A test holds these fields and `chat_schema.ChatRequest` against the SDK's own list, so that a
new one is decided about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from conductor.errors import BadTask

LEGACY_ROLE = "function"
LEGACY = {
    "functions": "Send `tools` in its place.",
    "function_call": "Send `tool_choice`, or in a message `tool_calls`, in its place.",
}
"""What OpenAI's own names for the first form of tools were replaced by."""


@dataclass(frozen=True, slots=True)
class Neutral:
    """The value beside empty ones (null, false, 0, "", [], {}) that leaves the answer as it is without the
    field.
    """

    values: tuple[object, ...]


class UnservedFields(BaseModel):
    """Fields of a request that `refuse_unserved` looks at."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    functions: Any = None
    function_call: Annotated[Any, Neutral(("none", "auto"))] = None
    modalities: Annotated[Any, Neutral((["text"],))] = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None


class UnservedMessageFields(BaseModel):
    """Fields of a message, likewise."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    function_call: Any = None
    audio: Any = None


_NEUTRAL = {
    name: [each for mark in field.metadata if isinstance(mark, Neutral) for each in mark.values]
    for name, field in UnservedFields.model_fields.items()
}


def refuse_unserved(request: UnservedFields, messages: Sequence[UnservedMessageFields]) -> None:
    """Look at every field that is known and not served.

    Raises:
        BadTask: one of them would change the answer.
    """
    for name, neutral in _NEUTRAL.items():
        if name == "functions" and request.function_call == "none":
            continue  # offered, and none may be called
        _refuse(name, getattr(request, name), neutral)
    for index, message in enumerate(messages):
        for name in UnservedMessageFields.model_fields:
            if value := getattr(message, name):
                _refuse(f"messages[{index}].{name}", value)


def _refuse(place: str, value: object, neutral: Sequence[object] = ()) -> None:
    switched_on = place == "web_search_options" and value == {}  # there, any object asks for the search
    if (not value or value in neutral) and not switched_on:
        return
    remedy = LEGACY.get(place.rpartition(".")[2], "Leave it out, or ask a model's own API.")
    raise BadTask(f"{place} is not served yet, and would change the answer. {remedy}", param=place)
