"""Messages, their parts, and the tools that a client offers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from conductor.model.value import DefaultingValue, JsonValue, MarkedValue, Value

Role = Literal["system", "user", "assistant", "tool"]
"""A message of the role `tool` holds results of tools, and nothing else."""
ToolKind = Literal["function", "custom"]
"""`function`: its arguments are JSON. `custom`: its input is free text (OpenAI's custom tools)."""
CacheMark = Literal["", "ephemeral", "5m", "1h", "explicit", "30m", "12h"]
"""A client's mark for the provider's prompt cache: everything up to and including the marked part is one cached prefix.

* `""`: no mark.
* `ephemeral`, `5m`, `1h`: Anthropic's `cache_control`, without a `ttl` and with one.
* `explicit`, `30m`, `12h`: OpenAI's `prompt_cache_breakpoint`, without a `ttl` and with one.

Marks are no part of a value: clients move them from turn to turn, and equal parts stay equal.
"""


class Text(MarkedValue, frozen=True):
    """Words in a message."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    text: str
    cache: CacheMark = ""


class Image(MarkedValue, DefaultingValue, frozen=True):
    """A picture in a message: an `https:` address, or a `data:` address that holds it in base64."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    url: str
    detail: Literal["auto", "low", "high"] = "auto"
    cache: CacheMark = ""


class File(MarkedValue, frozen=True):
    """A file in a message: a PDF, or text.

    Args:
        name: as the user calls it, in one line.
        url: a PDF, as a `data:` address in base64. Empty for text.
        text: what a text file says; every model can read it. None for a PDF.
        id: of a file that is kept here, until its content is put in its place; then empty.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    name: str
    url: str = ""
    text: str | None = None
    id: str = ""
    cache: CacheMark = ""

    @property
    def n_bytes(self) -> int:
        """How large it is; 0 while it is only an id."""
        if self.text is not None:
            return len(self.text.encode("utf-8", "surrogatepass"))
        return len(self.url.partition(",")[2].rstrip("=")) * 3 // 4


class ToolCall(MarkedValue, DefaultingValue, frozen=True):
    """A model's call of a tool: part of an assistant's message.

    Args:
        id: what the other side calls it: the client's in a conversation of the client's, the provider's in a
            step's own. Empty where the provider gives none.
        name: of the tool.
        arguments: a function's as JSON text, as the model wrote it; a custom tool's input.
        kind, namespace: as the tool's.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    id: str
    name: str
    arguments: str
    kind: ToolKind = "function"
    namespace: str = ""
    cache: CacheMark = ""


class PendingCall(Value, frozen=True):
    """A call of a tool whose result a run waits for.

    Args:
        number: unique in its run, from 0; the client's id for it is made of the run and this.
        call: with the provider's id.
    """

    number: int
    call: ToolCall


class ToolResult(MarkedValue, frozen=True):
    """What a tool gave: part of a message of the role `tool`.

    Args:
        id: of the call.
        parts: the words, pictures and files that it gave.
        is_error: the client says that the call failed.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"cache"})

    id: str
    parts: tuple[Text | Image | File, ...] = ()
    is_error: bool = False
    cache: CacheMark = ""

    @property
    def text(self) -> str:
        """The words, pictures and files left out."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class Native(JsonValue, frozen=True):
    """An assistant's turn exactly as its provider wrote it: signed thoughts, reasoning items, the parts of its
    calls. It goes back unchanged, and only to the same worker and account; nobody else reads it.

    Args:
        worker: who wrote it.
        account: the provider's account or place that it is bound to, as the wire names it; empty where the
            worker has one.
        payload: JSON, in the wire's own form.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"payload"})

    worker: str
    account: str
    payload: Any


Part = Text | Image | File | ToolCall | ToolResult


class Message(JsonValue, frozen=True):
    """One turn of a conversation. `system` stands for OpenAI's `system` and `developer` alike."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"thoughts"})

    role: Role
    parts: tuple[Part, ...]
    native: Native | None = None
    """An assistant's turn as its provider wrote it, where it has to go back to it unchanged."""
    thoughts: Mapping[str, Any] = {}
    """What led to an assistant's turn, as its client sent it back: `reasoning_content`, `reasoning` and
    `reasoning_details` of Chat Completions. Only a worker that is called by its name is sent them."""

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """A message of words only."""
        return cls(role, (Text(text),))

    @property
    def text(self) -> str:
        """The words, all else left out."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools in it."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """What tools gave."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def has_image(self) -> bool:
        """Whether a picture is in it, or in what a tool gave."""
        return any(isinstance(part, Image) for part in self.all_parts)

    @property
    def has_pdf(self) -> bool:
        """Whether a file is in it, or in what a tool gave, that not every model can read."""
        return any(isinstance(part, File) and part.text is None for part in self.all_parts)

    @property
    def all_parts(self) -> Iterator[Part]:
        """Its parts, and after each result of a tool what that holds."""
        for part in self.parts:
            yield part
            if isinstance(part, ToolResult):
                yield from part.parts


def without_cache_marks(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return `messages` without the marks of their parts, for whatever must not depend on where a client put them."""
    return tuple(replace(message, parts=tuple(map(_without_mark, message.parts))) for message in messages)


def _without_mark(part: Any) -> Any:
    inside = {"parts": tuple(map(_without_mark, part.parts))} if isinstance(part, ToolResult) else {}
    return replace(part, cache="", **inside)


class Tool(MarkedValue, DefaultingValue, frozen=True):
    """A tool that the client runs.

    Args:
        name: unique in its namespace.
        description: for the model.
        parameters: JSON Schema of the arguments of a function; None: it takes none.
        strict: the arguments must hold to `parameters`.
        kind: see `ToolKind`.
        namespace: of the client's own (OpenAI's `namespace` tools); empty: none.
        format: of a custom tool's input (OpenAI's `format`, such as a grammar); None: any text.
        cache: see `CacheMark`; the prefix is the tools up to this one.
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
    """Whether a model calls tools.

    Args:
        mode: `auto`: it decides; `none`: it does not; `required`: it calls at least one.
        names: with `auto` or `required`: only these may be called; empty: all. One name with `required` is a
            forced call.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


AUTO = ToolChoice()


class Toolset(DefaultingValue, frozen=True):
    """The tools of a request or of one call.

    Args:
        tools: in the client's order.
        choice: whether they are called.
        parallel: several may be called at once.
    """

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = AUTO
    parallel: bool = True

    def __bool__(self) -> bool:
        return bool(self.tools) and self.choice.mode != "none"

    @property
    def is_forced(self) -> bool:
        """Whether at least one tool must be called."""
        return bool(self.tools) and self.choice.mode == "required"

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Those that the choice leaves: none where none may be called."""
        if not self:
            return ()
        return tuple(tool for tool in self.tools if not self.choice.names or tool.name in self.choice.names)


NO_TOOLS = Toolset()
