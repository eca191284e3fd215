"""The content blocks of Anthropic's messages, as clients send them, and the parts that they become.

Thoughts come back with our own signature. They go to a worker that is called by its name and wants them beside the calls
that they led to; those that a provider has signed go back to it by other means (`Native`).
"""

import json
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from msgspec.structs import replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from conductor.model.messages import File, Image, Part, Text, ToolCall, ToolResult
from serving.api.attachments import NO_ADDRESS, kept_file, one_line, to_file
from serving.api.dialects.chat.tools import CalledName
from serving.api.dialects.read_body import MarkFields
from serving.workers.images import picture_url, plain_media_type

MOST_BLOCKS = 2048
"""Of a message, as in a chat."""
Json = dict[str, Any]
Id = Annotated[str, Field(min_length=1, max_length=1024)]


class Ignoring(BaseModel):
    """Takes what it knows, and lets the rest be: `citations`, betas."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Marked(Ignoring, MarkFields):
    """A block that may end a cached prefix."""


class Unserved(Ignoring):
    """A sort that no worker is shown; one is never made."""

    type: str

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        kind = cast(Json, given).get("type") if isinstance(given, dict) else given
        raise ValueError(f"{str(kind)[:64]!r} is not served here")


def by_type(*kinds: str) -> Discriminator:
    """A union's discriminator: one of `kinds` by its `type`, or else "unserved"."""

    def sort(given: Any) -> str:
        kind = cast(Json, given).get("type") if isinstance(given, dict) else None
        return kind if kind in kinds else "unserved"

    return Discriminator(sort)


class TextBlock(Marked):
    """Words."""

    type: Literal["text"]
    text: str

    @property
    def parts(self) -> tuple[Text, ...]:
        """The words; none of an empty one."""
        return (Text(self.text, self.mark),) if self.text else ()


class Base64Source(Ignoring):
    """A picture, here."""

    type: Literal["base64"]
    media_type: Annotated[
        Literal["image/jpeg", "image/png", "image/gif", "image/webp"], BeforeValidator(plain_media_type)
    ]
    data: str = Field(min_length=1)

    @property
    def url(self) -> str:
        """As a `data:` address."""
        return picture_url(f"data:{self.media_type};base64,{self.data}")

    @model_validator(mode="after")
    def _holds_a_picture(self) -> "Base64Source":
        _ = self.url  # what no provider could read is rejected here, by its place
        return self


class UrlSource(Ignoring):
    """A picture, elsewhere."""

    type: Literal["url"]
    url: str = Field(pattern=r"(?i)^https?://")


class ImageBlock(Marked):
    """A picture."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("base64")]
        | Annotated[UrlSource, Tag("url")]
        | Annotated[Unserved, Tag("unserved")],
        by_type("base64", "url"),
    ]

    @property
    def parts(self) -> tuple[Image, ...]:
        """It."""
        assert not isinstance(self.source, Unserved)
        return (Image(self.source.url, cache=self.mark),)


SimpleBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[Unserved, Tag("unserved")],
    by_type("text", "image"),
]


class PlainSource(Ignoring):
    """A document's text."""

    type: Literal["text"]
    data: str

    @property
    def parts(self) -> tuple[Text | Image, ...]:
        """It."""
        return (Text(self.data),) if self.data else ()


class ContentSource(Ignoring):
    """A document of blocks."""

    type: Literal["content"]
    content: str | Annotated[list[SimpleBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)]

    @property
    def parts(self) -> tuple[Text | Image, ...]:
        """They."""
        if isinstance(self.content, str):
            return (Text(self.content),)
        return tuple(
            part for block in self.content if not isinstance(block, Unserved) for part in block.parts
        )


class FileBase64(Ignoring):
    """A file, here."""

    type: Literal["base64"]
    media_type: str = Field(max_length=128)
    data: str = Field(min_length=1)

    @cached_property
    def file(self) -> File:
        """It, without its title."""
        return to_file(None, self.data, self.media_type)

    @model_validator(mode="after")
    def _holds_a_file(self) -> "FileBase64":
        _ = self.file  # what nobody could read is rejected here, by its place
        return self


class KeptSource(Ignoring):
    """A file that was uploaded."""

    type: Literal["file"]
    file_id: str = Field(min_length=1, max_length=128)


class AddressSource(Ignoring):
    """A file elsewhere; one is never made."""

    type: Literal["url"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:
        raise ValueError(NO_ADDRESS)


class DocumentBlock(Marked):
    """A document: text, blocks, or a file."""

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
        """Its title, what was said of it, and what is in it."""
        if isinstance(self.source, FileBase64 | KeptSource):
            said = (Text(self.context),) if self.context else ()
            return (*said, replace(self._file(self.source), cache=self.mark))
        assert not isinstance(self.source, Unserved | AddressSource)
        head = "\n".join(each for each in (self.title, self.context) if each)
        parts = [*((Text(head),) if head else ()), *self.source.parts]
        if parts and self.mark:
            parts[-1] = replace(parts[-1], cache=self.mark)
        return tuple(parts)

    def _file(self, source: FileBase64 | KeptSource) -> File:
        if isinstance(source, KeptSource):
            return kept_file(source.file_id, self.title)
        return replace(source.file, name=one_line(self.title) or source.file.name)


class SearchResultBlock(Marked):
    """What a search of the client's own found."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)]

    @property
    def parts(self) -> tuple[Text, ...]:
        """It, in words."""
        words = "\n".join([self.title, self.source, *(block.text for block in self.content)])
        return (Text(words, self.mark),)


class ToolReferenceBlock(Marked):
    """What a search for tools found: every tool is offered anyway."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def parts(self) -> tuple[Text, ...]:
        """It, in words."""
        return (Text(f"The tool {self.tool_name} can be called.", self.mark),)


class ToolUseBlock(Marked):
    """A call of a tool of the client's."""

    type: Literal["tool_use"]
    id: Id
    name: CalledName
    input: Json = Field(default_factory=dict[str, Any])

    @property
    def parts(self) -> tuple[ToolCall, ...]:
        """It."""
        written = json.dumps(
            self.input, ensure_ascii=False, separators=(",", ":")
        )  # takes numbers of any size
        return (ToolCall(self.id, self.name, written, cache=self.mark),)


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
    """What a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: Id
    content: str | Annotated[list[ResultBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)] | None = None
    is_error: bool | None = None

    @property
    def parts(self) -> tuple[ToolResult, ...]:
        """It."""
        if isinstance(self.content, str):
            given: tuple[Text | Image | File, ...] = (Text(self.content),) if self.content else ()
        else:
            blocks = (block for block in self.content or () if not isinstance(block, Unserved))
            given = tuple(part for block in blocks for part in block.parts)
        return (ToolResult(self.tool_use_id, given, bool(self.is_error), self.mark),)


class PassingBlock(Ignoring):
    """What is in a conversation and is no part of a message: thoughts, and what a provider's own tools did."""

    type: str
    thinking: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Nothing."""
        return ()


THOUGHTS = ("thinking", "redacted_thinking")
SERVER_TOOLS = (
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
)
"""Blocks that a provider's own tools leave in a conversation."""


def _sort(given: Any) -> str:
    kind = cast(Json, given).get("type") if isinstance(given, dict) else None
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
"""One block of a message."""
