"""The body of a chat completion: its fields, and those that Podium does not serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from conductor.errors import BadTask
from conductor.model.call import AnswerFormat
from conductor.model.messages import File
from conductor.model.operation import TokenBias, WireOptions
from conductor.model.terms import Priority
from serving.api.answer_format import ANY_OBJECT, read_schema
from serving.api.attachments import kept_file, to_file
from serving.api.dialects.chat.tools import MessageTools, ToolFields
from serving.api.dialects.read_body import NEUTRAL, CacheFields, ExtraFields, MarkFields, read_body
from serving.api.request import MOST, Effort, Podium, Tier, or_empty, priority_of
from serving.workers.images import picture_url

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


class JsonSchema(BaseModel):
    """What a schema comes in."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    name: str
    schema_: Any = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def read_format(given: ResponseFormat | None) -> AnswerFormat | None:
    """What the answer must be; None: any text.

    Raises:
        BadTask: naming the field.
    """
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return ANY_OBJECT
    param = "response_format.json_schema"
    schema = given.json_schema
    if schema is None:
        raise BadTask(f"{param}: send the schema there.", param=param)
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


class WireFields(BaseModel):
    """What only some wires take; a worker that does not is never asked (`serving/api/request.py`)."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenNumber, Bias], Field(max_length=MOST_BIASES)] | None = None

    @property
    def penalties(self) -> WireOptions:
        """Those of them that are not neutral."""
        bias = tuple(TokenBias(*each) for each in (self.logit_bias or {}).items() if each[1])
        return WireOptions(self.frequency_penalty or None, self.presence_penalty or None, bias or None)


class SamplerFields(BaseModel):
    """What vLLM and OpenRouter take beside OpenAI's; of a model that does not, it is left out and noted."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None

    @property
    def samplers(self) -> dict[str, Any]:
        """Those that were sent, as `Sampling` names them; vLLM's -1 is 0."""
        top_k = None if self.top_k is None else max(0, self.top_k)
        return {"top_k": top_k, "min_p": self.min_p, "repetition_penalty": self.repetition_penalty}


class ChatOptionFields(WireFields, SamplerFields):
    """Those of a chat."""

    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, top: int | None, info: ValidationInfo) -> int | None:
        if top and not info.data.get("logprobs"):
            raise ValueError("needs `logprobs: true`")
        return top

    @property
    def options(self) -> WireOptions:
        """Those that ask for something."""
        own = self.penalties
        return WireOptions(
            own.frequency_penalty,
            own.presence_penalty,
            own.logit_bias,
            (self.top_logprobs or 0) if self.logprobs else None,
            None if self.verbosity == "medium" else self.verbosity,
        )


class TierFields(BaseModel):
    """How soon the answer is wanted."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    service_tier: Tier | None = None

    @property
    def priority(self) -> Priority:
        """See `priority_of`."""
        return priority_of(self.service_tier)


class NotedFields(ExtraFields):
    """Fields that change no answer."""

    metadata: Any = None
    prediction: Any = None
    safety_identifier: Any = None
    store: Any = None
    user: Any = None

    @property
    def noted(self) -> tuple[str, ...]:
        """A line for each that was sent, unknown ones too. Never its value: that may be about a person."""
        sent = (name for name in NotedFields.model_fields if getattr(self, name) not in NEUTRAL)
        return (*(f"{name} has no effect here." for name in sent), *self.extras)


MOST_PARTS = 2048
"""Messages of a conversation and parts of a message, as with OpenAI: more objects than that take seconds to
read."""
MOST_STOP_CHARS = 1000
"""Of a stop sequence."""
# Every list ends at its first fault: a body of a megabyte could hold so many that telling them all would
# take seconds.


class _Ignoring(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def _auto(detail: Any) -> Any:
    return "auto" if detail is None else detail


class ImageUrl(_Ignoring):
    """OpenAI's picture."""

    url: str = Field(pattern=r"(?i)^(https?://|data:image/)")
    detail: Annotated[Literal["auto", "low", "high"], BeforeValidator(_auto)] = "auto"

    @field_validator("url")
    @classmethod
    def _holds_a_picture(cls, url: str) -> str:
        return picture_url(url)  # what no provider could read is rejected here, by its place


class TextPart(MarkFields):
    """OpenAI's text part."""

    type: Literal["text"]
    text: str


class ImagePart(MarkFields):
    """OpenAI's picture part."""

    type: Literal["image_url"]
    image_url: ImageUrl


class RefusalPart(MarkFields):
    """OpenAI's words of an assistant that would not answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What the model is shown of it."""
        return self.refusal


class ChatFile(_Ignoring):
    """OpenAI's file: itself, or the id of one that was uploaded."""

    file_data: str | None = None
    file_id: str | None = Field(default=None, min_length=1, max_length=128)
    filename: str | None = None

    @model_validator(mode="after")
    def _holds_a_file(self) -> "ChatFile":
        if (self.file_data is None) == (self.file_id is None):
            raise ValueError("give either file_data or file_id")
        return self

    def to_file(self) -> File:
        """It. ValueError: it is none that is taken."""
        if self.file_data is not None:
            return to_file(self.filename, self.file_data)
        return kept_file(self.file_id or "", self.filename)


class FilePart(MarkFields):
    """OpenAI's file part."""

    type: Literal["file"]
    file: ChatFile


class UnservedPart(_Ignoring):
    """OpenAI's parts that no worker is shown yet; one is never made."""

    type: Literal["input_audio"]
    text: str = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:
        raise ValueError("is not served yet. Send text, pictures or files, or ask a model's own API")


ContentPart = Annotated[
    TextPart | ImagePart | FilePart | RefusalPart | UnservedPart,
    Field(discriminator="type"),
]


class ChatMessage(MessageTools, MarkFields, UnservedMessageFields):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(max_length=MOST_PARTS, fail_fast=True)] | None = None
    refusal: str | None = None
    """An assistant's, which took the place of its content."""
    reasoning_content: Any = None
    """What led to an assistant's turn, as this server or another gave it; `reasoning` is another name for it."""
    reasoning: Any = None
    reasoning_details: Any = None


class StreamOptions(_Ignoring):
    """OpenAI's."""

    include_usage: bool = False


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopSequences = (
    Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARS)]],
        Field(max_length=16, fail_fast=True),
        BeforeValidator(_list),
    ]
    | None
)


class ChatRequest(ToolFields, ChatOptionFields, CacheFields, TierFields, UnservedFields, NotedFields):
    """The body of `POST /v1/chat/completions` and `POST /v1/plans`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MOST_PARTS)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=MOST)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MOST)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: StopSequences = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    podium: Annotated[Podium, BeforeValidator(or_empty)] = Field(default_factory=Podium)


def read(body: bytes) -> ChatRequest:
    """The request in `body`.

    Raises:
        BadTask: naming the field, in the caller's spelling, and what it may be.
    """
    request = read_body(ChatRequest, body, _remedy)
    refuse_unserved(request, list(request.messages))
    return request


def _remedy(param: str, given: object) -> str:
    if given == LEGACY_ROLE and param.endswith("].role"):
        return " Send the results of tools with the role `tool`."
    if (
        param.startswith("podium.")
        and param.count(".") == 1
        and param.removeprefix("podium.") not in Podium.model_fields
    ):
        return f" `podium` takes: {', '.join(Podium.model_fields)}."
    return {
        "messages": ' Send at least one message, such as {"role": "user", "content": "..."}.',
        "model": " GET /v1/models lists the names.",
        "podium.max_cost_usd": f" Give dollars above 0 and up to {MOST}, or leave it out for no limit.",
        "n": f" At most {MOST_CHOICES} answers a request.",
    }.get(param, "")
