"""Body of a chat completion: its fields, and fields that Podium does not support."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from conductor.errors import BadTask
from conductor.model.call import AnswerFormat
from conductor.model.messages import File
from conductor.model.operation import TokenBias, WireOptions
from conductor.model.terms import Priority
from serving.api.answer_format import ANY_OBJECT, read_schema
from serving.api.attachments import file_by_id, to_file
from serving.api.dialects.chat.tools import ChatToolFields, MessageTools
from serving.api.dialects.read_body import (
    NEUTRAL,
    CacheFields,
    ExtraFields,
    LenientModel,
    MarkFields,
    read_body,
)
from serving.api.request import MOST, Effort, Podium, PodiumField, Tier, priority_of
from serving.workers.picture_urls import picture_url

LEGACY_ROLE = "function"
LEGACY = {
    "functions": "Use `tools` instead.",
    "function_call": "Use `tool_choice` instead, or `tool_calls` in a message.",
}
"""Replacements for the fields of OpenAI's first format of tools."""


@dataclass(frozen=True, slots=True)
class Neutral:
    """Values of an unsupported field that do not change the answer. Empty values (null, false, 0, "",
    [], {}) never do.
    """

    values: tuple[object, ...]


class UnservedFields(LenientModel):
    """Fields of a request that are not supported; see `refuse_unserved`."""

    functions: Any = None
    function_call: Annotated[Any, Neutral(("none", "auto"))] = None
    modalities: Annotated[Any, Neutral((["text"],))] = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None


class UnservedMessageFields(LenientModel):
    """Fields of a message that are not supported; see `refuse_unserved`."""

    function_call: Any = None
    audio: Any = None


_NEUTRAL = {
    name: [each for mark in field.metadata if isinstance(mark, Neutral) for each in mark.values]
    for name, field in UnservedFields.model_fields.items()
}


def refuse_unserved(request: UnservedFields, messages: Sequence[UnservedMessageFields]) -> None:
    """Check that no unsupported field of a request would change the answer.

    Raises:
        BadTask: an unsupported field would change the answer. `param` names it.
    """
    for name, neutral in _NEUTRAL.items():
        if name == "functions" and request.function_call == "none":
            continue  # the functions may not be called anyway
        _refuse(name, getattr(request, name), neutral)
    for index, message in enumerate(messages):
        for name in UnservedMessageFields.model_fields:
            if value := getattr(message, name):
                _refuse(f"messages[{index}].{name}", value)


def _refuse(place: str, value: object, neutral: Sequence[object] = ()) -> None:
    is_search = place == "web_search_options" and value == {}  # even an empty object requests a search
    if (not value or value in neutral) and not is_search:
        return
    remedy = LEGACY.get(place.rpartition(".")[2], "Remove it, or use the provider's own API.")
    raise BadTask(f"{place} is not supported, and ignoring it would change the answer. {remedy}", param=place)


class JsonSchema(LenientModel):
    """JSON Schema for the answer, with its name."""

    name: str
    schema_: Any = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(LenientModel):
    """Format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def read_format(format: ResponseFormat | None) -> AnswerFormat | None:
    """Return the answer format, or None if any text is accepted.

    Raises:
        BadTask: the format is invalid. The message names the field.
    """
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return ANY_OBJECT
    param = "response_format.json_schema"
    schema = format.json_schema
    if schema is None:
        raise BadTask(f"{param} is required if response_format.type is `json_schema`.", param=param)
    return read_schema(
        {} if schema.schema_ is None else schema.schema_,
        schema.name,
        schema.strict,
        param,
        description=schema.description,
    )


MOST_CHOICES = 8
MOST_BIASES = 1024
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenNumber = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class WireFields(LenientModel):
    """Options that only some APIs support. Only workers that support them are called; see `check_options`."""

    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenNumber, Bias], Field(max_length=MOST_BIASES)] | None = None

    @property
    def penalties(self) -> WireOptions:
        """The options that are set and not neutral."""
        bias = tuple(TokenBias(*each) for each in (self.logit_bias or {}).items() if each[1])
        return WireOptions(self.frequency_penalty or None, self.presence_penalty or None, bias or None)


class SamplerFields(LenientModel):
    """Sampling options of vLLM and OpenRouter that OpenAI does not have. A model that does not support an
    option ignores it, and the record contains a note.
    """

    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None

    @property
    def samplers(self) -> dict[str, Any]:
        """Options by their names in `Sampling`. vLLM's -1 becomes 0."""
        top_k = None if self.top_k is None else max(0, self.top_k)
        return {"top_k": top_k, "min_p": self.min_p, "repetition_penalty": self.repetition_penalty}


class ChatOptionFields(WireFields, SamplerFields):
    """Options of a chat."""

    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, top: int | None, info: ValidationInfo) -> int | None:
        if top and not info.data.get("logprobs"):
            raise ValueError("requires `logprobs: true`")
        return top

    @property
    def options(self) -> WireOptions:
        """The options that are set and not neutral."""
        return replace(
            self.penalties,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            verbosity=None if self.verbosity == "medium" else self.verbosity,
        )


class TierFields(LenientModel):
    """Service tier of a request."""

    service_tier: Tier | None = None

    @property
    def priority(self) -> Priority:
        return priority_of(self.service_tier)


class NotedFields(ExtraFields):
    """Known fields that do not change the answer. They are ignored, and the record lists them."""

    metadata: Any = None
    prediction: Any = None
    safety_identifier: Any = None
    store: Any = None
    user: Any = None

    @property
    def noted(self) -> tuple[str, ...]:
        """One line per ignored field, unknown ones included. It never has the value, which may be personal
        data.
        """
        names = (name for name in NotedFields.model_fields if getattr(self, name) not in NEUTRAL)
        return (
            *(f"{name} was ignored, because it has no effect on this server." for name in names),
            *self.extras,
        )


MOST_PARTS = 2048
"""Maximum number of messages in a conversation, and of parts in a message, as in OpenAI's API. More would
take seconds to parse.
"""
MOST_STOP_CHARS = 1000
"""Maximum length of one stop sequence."""
# Every list uses `fail_fast`: a body of a megabyte could have so many errors that listing them takes seconds.


def _auto(detail: Any) -> Any:
    return "auto" if detail is None else detail


class ImageUrl(LenientModel):
    """Picture, as a URL or inline as a `data:` URL."""

    url: str = Field(pattern=r"(?i)^(https?://|data:image/)")
    detail: Annotated[Literal["auto", "low", "high"], BeforeValidator(_auto)] = "auto"

    @field_validator("url")
    @classmethod
    def _holds_a_picture(cls, url: str) -> str:
        return picture_url(url)  # reject here what no provider could read, so that the error names the place


class TextPart(MarkFields):
    """Text."""

    type: Literal["text"]
    text: str


class ImagePart(MarkFields):
    """Picture."""

    type: Literal["image_url"]
    image_url: ImageUrl


class RefusalPart(MarkFields):
    """Part of a message in which an assistant refuses to answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class ChatFile(LenientModel):
    """File, sent inline or named by the id of an uploaded file."""

    file_data: str | None = None
    file_id: str | None = Field(default=None, min_length=1, max_length=128)
    filename: str | None = None

    @model_validator(mode="after")
    def _holds_a_file(self) -> "ChatFile":
        if (self.file_data is None) == (self.file_id is None):
            raise ValueError("must have exactly one of `file_data` and `file_id`")
        return self

    def to_file(self) -> File:
        """Return the file.

        Raises:
            ValueError: the content is not accepted.
        """
        if self.file_data is not None:
            return to_file(self.filename, self.file_data)
        return file_by_id(self.file_id or "", self.filename)


class FilePart(MarkFields):
    """File."""

    type: Literal["file"]
    file: ChatFile


class UnservedPart(LenientModel):
    """Part of a message that is not supported. Validation rejects it."""

    type: Literal["input_audio"]
    text: str = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:
        raise ValueError("is not supported. Send text, images or files, or use the provider's own API")


ContentPart = Annotated[
    TextPart | ImagePart | FilePart | RefusalPart | UnservedPart, Field(discriminator="type")
]


class ChatMessage(MessageTools, MarkFields, UnservedMessageFields):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(max_length=MOST_PARTS, fail_fast=True)] | None = None
    refusal: str | None = None
    """Refusal of an assistant, in place of its content."""
    reasoning_content: Any = None
    """Reasoning of an assistant, from this server or another. Some servers call it `reasoning`."""
    reasoning: Any = None
    reasoning_details: Any = None


class StreamOptions(LenientModel):
    """Options of a stream."""

    include_usage: bool = False


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopSequences = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARS)]],
    Field(max_length=16, fail_fast=True),
]
StopField = Annotated[StopSequences, BeforeValidator(_list)] | None


class ChatRequest(ChatToolFields, ChatOptionFields, CacheFields, TierFields, UnservedFields, NotedFields):
    """Body of `POST /v1/chat/completions` and `POST /v1/plans`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MOST_PARTS)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=MOST)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MOST)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: StopField = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    podium: PodiumField


def read(body: bytes) -> ChatRequest:
    """Parse a request.

    Raises:
        BadTask: a field is invalid. The message names it as the client wrote it.
    """
    request = read_body(ChatRequest, body, _remedy)
    refuse_unserved(request, list(request.messages))
    return request


def _remedy(param: str, value: object) -> str:
    if value == LEGACY_ROLE and param.endswith("].role"):
        return " Use the role `tool` for tool results."
    if (
        param.startswith("podium.")
        and param.count(".") == 1
        and param.removeprefix("podium.") not in Podium.model_fields
    ):
        return f" Fields of `podium`: {', '.join(Podium.model_fields)}."
    return {
        "messages": ' Send at least one message, such as {"role": "user", "content": "..."}.',
        "model": " GET /v1/models lists the names.",
        "podium.max_cost_usd": f" Send an amount in dollars above 0 and at most {MOST}, or remove the field for no limit.",
        "n": f" A request can have at most {MOST_CHOICES} answers.",
    }.get(param, "")
