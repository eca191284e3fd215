"""Messages and their parts, and the tools that a client offers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, cast

from msgspec.structs import replace

from conductor.model.characters import byte_size
from conductor.model.value import DefaultingValue, JsonValue, MarkedValue, Value

THOUGHTS: Mapping[str, type] = {"reasoning_content": str, "reasoning": str, "reasoning_details": list}
"""Fields of Chat Completions that contain the reasoning of an assistant turn, with their types."""
Role = Literal["system", "user", "assistant", "tool"]
"""A message with the role `tool` holds tool results only."""
ToolKind = Literal["function", "custom"]
"""`function`: the arguments are JSON. `custom`: the input is free text (OpenAI's custom tools)."""
CacheMark = Literal["", "ephemeral", "5m", "1h", "explicit", "30m", "12h"]
"""A client's mark for the provider's prompt cache: everything up to and including the marked part is one
cached prefix.

* `""`: no mark.
* `ephemeral`, `5m`, `1h`: Anthropic's `cache_control`, without a `ttl` and with one.
* `explicit`, `30m`, `12h`: OpenAI's `prompt_cache_breakpoint`, without a `ttl` and with one.

Marks do not count in comparisons: clients move them from turn to turn, and parts must stay equal."""


class Text(MarkedValue, frozen=True):
    """Text in a message."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    text: str
    cache: CacheMark = ""


class Image(MarkedValue, DefaultingValue, frozen=True):
    """Image in a message: an `https:` URL, or a `data:` URL with base64 content."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    url: str
    detail: Literal["auto", "low", "high"] = "auto"
    cache: CacheMark = ""


class File(MarkedValue, frozen=True):
    """File in a message: a PDF or a text file.

    Args:
        url: a PDF as a base64 `data:` URL. Empty for a text file.
        text: content of a text file, which every model can read. None for a PDF.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    name: str
    url: str = ""
    text: str | None = None
    id: str = ""
    cache: CacheMark = ""

    @property
    def n_bytes(self) -> int:
        """Size in bytes. 0 while only the id is known."""
        if self.text is not None:
            return byte_size(self.text)
        return len(self.url.partition(",")[2].rstrip("=")) * 3 // 4


class ToolCall(MarkedValue, DefaultingValue, frozen=True):
    """Tool call by a model, part of an assistant message.

    Args:
        id: id of the call. The client chooses it in the client's conversation, the provider in a step's own
            conversation. Empty if the provider does not choose one.
        arguments: JSON text as the model wrote it, or the input of a custom tool.
        kind, namespace: see `Tool`.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    id: str
    name: str
    arguments: str
    kind: ToolKind = "function"
    namespace: str = ""
    cache: CacheMark = ""


class PendingCall(Value, frozen=True):
    """Tool call whose result a run waits for. The client's id consists of the run and `number`, from 0."""

    number: int
    call: ToolCall


class ToolResult(MarkedValue, frozen=True):
    """Result of a tool call, part of a message with the role `tool`."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    id: str
    parts: tuple[Text | Image | File, ...] = ()
    is_error: bool = False
    cache: CacheMark = ""

    @property
    def text(self) -> str:
        """All text parts, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class Native(JsonValue, frozen=True):
    """Assistant turn exactly as the provider wrote it, with signed reasoning, reasoning items and parts of
    tool calls.

    It is sent back unchanged, and only to the same worker and account. No other worker reads it.

    Args:
        worker: worker that wrote it.
        account: provider account or deployment that the turn is bound to. Empty if the worker has only one.
        payload: JSON in the format of the provider's API.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"payload"})

    worker: str
    account: str
    payload: Any


Part = Text | Image | File | ToolCall | ToolResult


class Message(JsonValue, frozen=True):
    """One turn of a conversation. OpenAI's roles `system` and `developer` are both `system` here."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"thoughts"})

    role: Role
    parts: tuple[Part, ...]
    native: Native | None = None
    """Assistant turn as its provider wrote it, if it must be sent back unchanged."""
    thoughts: Mapping[str, Any] = {}
    """Reasoning of an assistant turn as the client sent it back; see `thoughts_of`. It is sent only to a worker
    that the request names as its model.
    """

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """Return a message with one text part."""
        return cls(role, (Text(text),))

    @property
    def text(self) -> str:
        """All text parts, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def has_image(self) -> bool:
        """True if the message, or a tool result in it, contains an image."""
        return any(isinstance(part, Image) for part in self.all_parts)

    @property
    def has_pdf(self) -> bool:
        """True if the message, or a tool result in it, contains a PDF, which not every model can read."""
        return any(isinstance(part, File) and part.text is None for part in self.all_parts)

    @property
    def all_parts(self) -> Iterator[Part]:
        """All parts. Each tool result is followed by its own parts."""
        for part in self.parts:
            yield part
            if isinstance(part, ToolResult):
                yield from part.parts


def thoughts_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `THOUGHTS` in a message's fields, without empty values and values of a wrong type."""
    return {
        name: fields[name]
        for name, kind in THOUGHTS.items()
        if fields.get(name) and isinstance(fields[name], kind)
    }


def contents_of(messages: Iterable[Message]) -> Iterator[object]:
    """Yield the texts, URLs and JSON values in `messages`. They take up nearly all of the memory."""
    for message in messages:
        if message.native is not None:
            yield from values_in(message.native.payload)
        if message.thoughts:
            yield from values_in(message.thoughts)
        for part in message.all_parts:
            match part:
                case Text(text=text):
                    yield text
                case Image(url=url):
                    yield url
                case File(url=url, text=text):
                    yield from (url, text)
                case ToolCall(arguments=arguments):
                    yield arguments
                case ToolResult():
                    pass  # `all_parts` yields its parts as well


def values_in(value: Any) -> Iterator[object]:
    """Yield a JSON value, and the field names and values in it, in any order."""
    pending = [value]
    while pending:
        each: Any = pending.pop()
        yield each
        if isinstance(each, dict):
            fields = cast(dict[str, Any], each)
            pending += fields
            pending += fields.values()
        elif isinstance(each, list):
            pending += cast(list[Any], each)


def cache_marks(messages: Iterable[Message], tools: Iterable["Tool"]) -> Iterator[str]:
    """Yield the cache marks that the client has set on tools and messages, in the order in which they end a prefix."""
    yield from (tool.cache for tool in tools if tool.cache)
    for part in (part for message in messages for part in message.parts):
        inside = part.parts if isinstance(part, ToolResult) else ()
        yield from (each.cache for each in (*inside, part) if each.cache)


def without_cache_marks(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Remove the cache marks from `messages`, for results that must not depend on where a client puts them."""
    return tuple(replace(message, parts=tuple(map(_without_mark, message.parts))) for message in messages)


def _without_mark(part: Any) -> Any:
    inside = {"parts": tuple(map(_without_mark, part.parts))} if isinstance(part, ToolResult) else {}
    return replace(part, cache="", **inside)


class Tool(MarkedValue, DefaultingValue, frozen=True):
    """Tool that the client runs.

    Args:
        name: name, unique in its namespace.
        parameters: JSON Schema of a function's arguments, or None if it has none.
        namespace: the client's namespace for the tool (OpenAI's `namespace` tools). Empty if it has none.
        format: format of a custom tool's input, such as a grammar (OpenAI's `format`), or None if it accepts any text.
        cache: see `CacheMark`. The cached prefix consists of the tools up to this one.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})
    not_hashed: ClassVar[frozenset[str]] = frozenset({"parameters", "format"})

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    kind: ToolKind = "function"
    namespace: str = ""
    format: Mapping[str, Any] | None = None
    cache: CacheMark = ""


class ToolChoice(DefaultingValue, frozen=True):
    """Rule for whether a model calls tools.

    Args:
        mode: `auto`: the model decides. `none`: it calls no tool. `required`: it calls at least one.
        names: the only tools that may be called in the modes `auto` and `required`, or empty to allow all. A
            single name with `required` forces that call.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


AUTO = ToolChoice()


class Toolset(DefaultingValue, frozen=True):
    """Tools of a request or of one call, in the client's order."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = AUTO
    parallel: bool = True

    def __bool__(self) -> bool:
        return bool(self.tools) and self.choice.mode != "none"

    @property
    def is_forced(self) -> bool:
        return bool(self.tools) and self.choice.mode == "required"

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Tools that the choice allows. Empty if no tool may be called."""
        if not self:
            return ()
        return tuple(tool for tool in self.tools if not self.choice.names or tool.name in self.choice.names)


NO_TOOLS = Toolset()
