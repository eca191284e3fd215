"""Content blocks of Anthropic's messages, and their conversion to parts.

Clients send reasoning back, with the signature that this server gave it. The reasoning is passed on only to a
worker that is called by its name and needs the reasoning that led to tool calls. Reasoning that a provider
has signed returns to that provider in a different way (`Native`).
"""

import json
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from msgspec.structs import replace
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from conductor.model.messages import File, Image, Part, Text, ToolCall, ToolResult
from serving.api.attachments import NO_ADDRESS, file_by_id, one_line, to_file
from serving.api.dialects.chat.tools import CalledName
from serving.api.dialects.read_body import LenientModel, MarkFields
from serving.workers.picture_urls import inline_url, plain_media_type

MOST_BLOCKS = 2048
"""Maximum number of blocks in a message, as in a chat."""
Json = dict[str, Any]
Id = Annotated[str, Field(min_length=1, max_length=1024)]


class Marked(MarkFields):
    """Block that may end a cached prefix."""


class Unserved(LenientModel):
    """Block or source of a type that is not supported. Validation rejects it."""

    type: str

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        kind = cast(Json, value).get("type") if isinstance(value, dict) else value
        raise ValueError(f"has the unsupported type {str(kind)[:64]!r}")


def by_type(*kinds: str) -> Discriminator:
    """Return the discriminator of a union: the `type` if it is one of `kinds`, otherwise "unserved"."""

    def sort(value: Any) -> str:
        kind = cast(Json, value).get("type") if isinstance(value, dict) else None
        return kind if kind in kinds else "unserved"

    return Discriminator(sort)


class TextBlock(Marked):
    """Text."""

    type: Literal["text"]
    text: str

    @property
    def parts(self) -> tuple[Text, ...]:
        """The text, or nothing if it is empty."""
        return (Text(self.text, self.mark),) if self.text else ()


class Base64Source(LenientModel):
    """Picture that is sent inline."""

    type: Literal["base64"]
    media_type: Annotated[
        Literal["image/jpeg", "image/png", "image/gif", "image/webp"], BeforeValidator(plain_media_type)
    ]
    data: str = Field(min_length=1)

    @cached_property
    def url(self) -> str:
        """The picture as a `data:` URL. Checking 19 MB takes 20 ms."""
        return inline_url(self.media_type, self.data)

    @model_validator(mode="after")
    def _holds_a_picture(self) -> "Base64Source":
        _ = self.url  # reject here what no provider could read, so that the error names the place
        return self


class UrlSource(LenientModel):
    """Picture at a URL."""

    type: Literal["url"]
    url: str = Field(pattern=r"(?i)^https?://")


class ImageBlock(Marked):
    """Picture."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("base64")]
        | Annotated[UrlSource, Tag("url")]
        | Annotated[Unserved, Tag("unserved")],
        by_type("base64", "url"),
    ]

    @property
    def parts(self) -> tuple[Image, ...]:
        assert not isinstance(self.source, Unserved)
        return (Image(self.source.url, cache=self.mark),)


SimpleBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[Unserved, Tag("unserved")],
    by_type("text", "image"),
]


class PlainSource(LenientModel):
    """Text of a document."""

    type: Literal["text"]
    data: str

    @property
    def parts(self) -> tuple[Text | Image, ...]:
        """The text, or nothing if it is empty."""
        return (Text(self.data),) if self.data else ()


class ContentSource(LenientModel):
    """Document made of blocks."""

    type: Literal["content"]
    content: str | Annotated[list[SimpleBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)]

    @property
    def parts(self) -> tuple[Text | Image, ...]:
        if isinstance(self.content, str):
            return (Text(self.content),)
        return tuple(
            part for block in self.content if not isinstance(block, Unserved) for part in block.parts
        )


class FileBase64(LenientModel):
    """File that is sent inline."""

    type: Literal["base64"]
    media_type: str = Field(max_length=128)
    data: str = Field(min_length=1)

    @cached_property
    def file(self) -> File:
        """The file, without its title."""
        return to_file(None, self.data, self.media_type)

    @model_validator(mode="after")
    def _holds_a_file(self) -> "FileBase64":
        _ = self.file  # reject here what no worker could read, so that the error names the place
        return self


class KeptSource(LenientModel):
    """Uploaded file, named by its id."""

    type: Literal["file"]
    file_id: str = Field(min_length=1, max_length=128)


class AddressSource(LenientModel):
    """File at a URL. Validation rejects it."""

    type: Literal["url"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:
        raise ValueError(NO_ADDRESS)


class DocumentBlock(Marked):
    """Document that contains text, other blocks or a file."""

    type: Literal["document"]
    source: Annotated[
        Annotated[PlainSource, Tag("text")]
        | Annotated[ContentSource, Tag("content")]
        | Annotated[FileBase64, Tag("base64")]
        | Annotated[KeptSource, Tag("file")]
        | Annotated[AddressSource, Tag("url")]
        | Annotated[Unserved, Tag("unserved")],
        by_type("text", "content", "base64", "file", "url"),
    ]
    title: str | None = None
    context: str | None = None

    @property
    def parts(self) -> tuple[Text | Image | File, ...]:
        """The title, the context and the content."""
        if isinstance(self.source, FileBase64 | KeptSource):
            context = (Text(self.context),) if self.context else ()
            return (*context, replace(self._file(self.source), cache=self.mark))
        assert not isinstance(self.source, Unserved | AddressSource)
        head = "\n".join(each for each in (self.title, self.context) if each)
        parts = [*((Text(head),) if head else ()), *self.source.parts]
        if parts and self.mark:
            parts[-1] = replace(parts[-1], cache=self.mark)
        return tuple(parts)

    def _file(self, source: FileBase64 | KeptSource) -> File:
        if isinstance(source, KeptSource):
            return file_by_id(source.file_id, self.title)
        return replace(source.file, name=one_line(self.title) or source.file.name)


class SearchResultBlock(Marked):
    """Result of a search that the client ran."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)]

    @property
    def parts(self) -> tuple[Text, ...]:
        words = "\n".join([self.title, self.source, *(block.text for block in self.content)])
        return (Text(words, self.mark),)


class ToolReferenceBlock(Marked):
    """Result of a search for tools. All tools are available to the model in any case."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def parts(self) -> tuple[Text, ...]:
        return (Text(f"The tool {self.tool_name} can be called.", self.mark),)


class ToolUseBlock(Marked):
    """Tool call that the client runs."""

    type: Literal["tool_use"]
    id: Id
    name: CalledName
    input: Json = Field(default_factory=dict[str, Any])

    @property
    def parts(self) -> tuple[ToolCall, ...]:
        arguments = json.dumps(
            self.input, ensure_ascii=False, separators=(",", ":")
        )  # not orjson, which rejects integers beyond 64 bits
        return (ToolCall(self.id, self.name, arguments, cache=self.mark),)


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[SearchResultBlock, Tag("search_result")]
    | Annotated[ToolReferenceBlock, Tag("tool_reference")]
    | Annotated[Unserved, Tag("unserved")],
    by_type("text", "image", "document", "search_result", "tool_reference"),
]


class ToolResultBlock(Marked):
    """Result of a tool."""

    type: Literal["tool_result"]
    tool_use_id: Id
    content: str | Annotated[list[ResultBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)] | None = None
    is_error: bool | None = None

    @property
    def parts(self) -> tuple[ToolResult, ...]:
        if isinstance(self.content, str):
            content: tuple[Text | Image | File, ...] = (Text(self.content),) if self.content else ()
        else:
            blocks = (block for block in self.content or () if not isinstance(block, Unserved))
            content = tuple(part for block in blocks for part in block.parts)
        return (ToolResult(self.tool_use_id, content, bool(self.is_error), self.mark),)


class PassingBlock(LenientModel):
    """Block that does not become a part of a message: reasoning, or the calls and results of a provider's own
    tools.
    """

    type: str
    thinking: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Empty, because the block has no parts."""
        return ()


THOUGHTS = ("thinking", "redacted_thinking")
SERVER_TOOLS = (
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
    "mcp_tool_use", "mcp_tool_result",
)  # fmt: skip
"""Types of the blocks that a provider's own tools leave in a conversation."""


def _sort(value: Any) -> str:
    kind = cast(Json, value).get("type") if isinstance(value, dict) else None
    if kind in (*THOUGHTS, *SERVER_TOOLS):
        return "passing"
    return kind if kind in _SORTS else "unserved"


_SORTS = ("text", "image", "document", "search_result", "tool_use", "tool_result")
Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[SearchResultBlock, Tag("search_result")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[PassingBlock, Tag("passing")]
    | Annotated[Unserved, Tag("unserved")],
    Discriminator(_sort),
]
"""Block of a message."""
