"""OpenAI's chat completion body, and `podium` in it.

Unknown OpenAI fields are ignored, because clients send what they like; known ones that are not served yet
and would change the answer are refused by name (`chat_unserved.py`), and so are unknown `podium` fields,
because a limit with a typing error in it must not go unnoticed.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from conductor.model.messages import File
from serving.api.attachments import kept_file, to_file
from serving.api.dialects.cache_marks import CacheFields, MarkFields
from serving.api.dialects.chat_format import ResponseFormat
from serving.api.dialects.chat_options import MOST_CHOICES, ChatOptionFields, NotedFields, TierFields
from serving.api.dialects.chat_tools import MessageTools, ToolFields
from serving.api.dialects.chat_unserved import (
    LEGACY_ROLE,
    UnservedFields,
    UnservedMessageFields,
    refuse_unserved,
)
from serving.api.dialects.read_body import read_body
from serving.api.request import MOST, Effort, Podium, or_empty
from serving.workers.images import picture_url

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
