"""Messages and tools in OpenAI's Chat Completions format, and tool calls that arrive in pieces.

API: https://platform.openai.com/docs/guides/function-calling. Some servers require that a turn with tool
calls is sent back with its thoughts (`reasoning_content`, `reasoning`, `reasoning_details`). Some add fields
to a call (`extra_content`). Both are stored unchanged.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from conductor.model.characters import whole
from conductor.model.messages import (
    CacheMark,
    File,
    Image,
    Message,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    thoughts_of,
)
from serving.workers.chat_chunks import CallPiece, ChunkDelta
from serving.workers.openai_options import ShowMark, no_marks
from serving.workers.output_limit import OutputMeter
from serving.workers.wire_tools import WireTools, arguments_text, function_of, name_of, wire_id

Content = Callable[[Message], object]
"""Function that returns the `content` field of a message, without its tool calls."""
MOST_NAME_CHARS = 4096
"""Maximum length of a call's name and id together. They do not count as output and are sent back unchanged.
"""
NOTHING = "(no output)"
"""Text that is sent for an empty tool result, because some servers reject an empty message."""


def tools_json(tools: WireTools, *, takes_strict: bool, show_mark: ShowMark = no_marks) -> dict[str, object]:
    if not tools:
        return {}
    listed = [_tool_json(tool, takes_strict) | show_mark(tool.cache) for tool in tools.tools]
    fields: dict[str, object] = {"tools": listed}
    if not tools.is_offered:
        return fields | {"tool_choice": "none"}
    if tools.forced:
        fields["tool_choice"] = {"type": "function", "function": {"name": tools.forced}}
    elif tools.choice.mode == "required":
        fields["tool_choice"] = "required"
    return fields if tools.parallel else fields | {"parallel_tool_calls": False}


def _tool_json(tool: Tool, takes_strict: bool) -> dict[str, object]:
    function = function_of(tool)
    strict = {"strict": True} if takes_strict and function.is_strict else {}
    body = {
        "name": function.name,
        "description": function.description,
        "parameters": function.schema,
        **strict,
    }
    return {"type": "function", "function": body}


def messages_json(
    messages: Iterable[Message], content: Content, show_mark: ShowMark = no_marks
) -> list[dict[str, object]]:
    """Return Chat Completions messages. Pictures and files of tool results follow those as a user message."""
    lines: list[dict[str, object]] = []
    attachments: list[Image | File] = []
    for message in messages:
        if message.role != "tool" and attachments:
            lines.append(_pictures(attachments, content))
            attachments = []
        if message.native is not None:
            lines.append(dict(cast(Mapping[str, object], message.native.payload)))
            continue
        lines += [_result_json(result, show_mark) for result in message.tool_results]
        attachments += [
            part for result in message.tool_results for part in result.parts if isinstance(part, Image | File)
        ]
        if message.role != "tool":
            lines.append(_message_json(message, content))
    return [*lines, _pictures(attachments, content)] if attachments else lines


def _message_json(message: Message, content: Content) -> dict[str, object]:
    calls = [_call_json(call) for call in message.tool_calls]
    content_json = (content(message) if message.text else None) if calls else content(message)
    fields = {"role": message.role, "content": content_json, **thoughts_of(message.thoughts)}
    return fields | ({"tool_calls": calls} if calls else {})


def _call_json(call: ToolCall) -> dict[str, object]:
    function = {"name": name_of(call.namespace, call.name), "arguments": arguments_text(call)}
    return {"id": wire_id(call.id), "type": "function", "function": function}


def _result_json(result: ToolResult, show_mark: ShowMark) -> dict[str, object]:
    shows = next((each for each in result.parts if not isinstance(each, Text)), None)
    kind = "file" if isinstance(shows, File) else "picture"
    text = result.text or (f"(see the {kind} below)" if shows else NOTHING)
    content = f"Error: {text}" if result.is_error else text
    marks: list[CacheMark] = [result.cache, *(part.cache for part in result.parts)]
    cache_fields = [field for mark in marks if (field := show_mark(mark))]
    return {
        "role": "tool",
        "tool_call_id": wire_id(result.id),
        "content": [{"type": "text", "text": content, **cache_fields[0]}] if cache_fields else content,
    }


def _pictures(attachments: list[Image | File], content: Content) -> dict[str, object]:
    kind = "pictures" if all(isinstance(each, Image) for each in attachments) else "files"
    message = Message("user", (Text(f"The {kind} that the tools gave:"), *attachments))
    return {"role": "user", "content": content(message)}


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    n_chars: int = 0
    """Length of the arguments."""
    extra: object = None

    @property
    def text(self) -> str:
        return whole("".join(self.arguments))

    @property
    def is_whole(self) -> bool:
        """True if the arguments are a complete JSON object."""
        # checks the end first, because this may be called for each piece
        newest = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        return newest.rstrip().endswith("}") and _is_object(self.text)

    @property
    def is_empty(self) -> bool:
        """True if the call has neither a name nor arguments. Some servers send such a call with text."""
        return not (self.name or self.arguments)


class CallCollector:
    """Collector of an answer's tool calls and thoughts, which arrive in pieces. A piece belongs to the call
    with its index. Without distinct indices, calls differ by ids and names.
    """

    def __init__(self, meter: OutputMeter) -> None:
        self._meter = meter
        self._calls: list[_Call] = []
        self._newest: dict[str, _Call] = {}
        """Newest call of each index."""
        self._by_id: dict[tuple[str, str], _Call] = {}
        """Calls by index and id."""
        self._thoughts: dict[str, list[Any]] = {}

    def __bool__(self) -> bool:
        return any(not call.is_empty for call in self._calls)

    def add(self, delta: ChunkDelta | None) -> bool:
        """Add the next piece of the answer. Return whether it has new content for a call or for thoughts."""
        if delta is None:
            return False
        is_new = False
        for name in ("reasoning_content", "reasoning"):
            thought = getattr(delta, name)
            if isinstance(thought, str) and thought:
                self._thoughts.setdefault(name, []).append(thought)
        details = cast(list[Any], delta.reasoning_details or [])
        if isinstance(delta.reasoning_details, list) and details:
            self._meter.keep(details)
            self._thoughts.setdefault("reasoning_details", []).extend(details)
            is_new = True
        if delta.tool_calls or delta.function_call:
            for piece in delta.calls:
                is_new |= self._add_piece(piece)
        return is_new

    def _add_piece(self, piece: CallPiece) -> bool:
        index = "" if piece.index is None else str(piece.index)
        id = "" if piece.id is None else str(piece.id)
        function = piece.function or piece
        name, text = function.name or "", function.text
        call = self._by_id.get((index, id)) if id else None
        call = call or self._newest.get(index)
        is_new = call is None or _starts_another(call, id, name, text)
        if call is None or is_new:
            self._meter.begin_call()
            call = _Call()
            self._calls.append(call)
        self._newest[index] = call
        if id:
            self._by_id[index, id] = call
        if name and name != call.name and not id and _may_be_rest_of_name(call):
            call.name += name
        call.id, call.name = call.id or id, call.name or name
        if piece.extra_content:
            self._meter.keep(piece.extra_content)
            call.extra = piece.extra_content
        is_repeated = len(text) == call.n_chars and text.startswith("{") and text == call.text
        if text and not is_repeated:  # some servers repeat all arguments at the end
            if call.arguments == ["{}"]:
                call.arguments.clear()
                call.n_chars = 0
            self._meter.add_arguments(text)
            call.arguments.append(text)
            call.n_chars += len(text)
            is_new = True
        if len(call.id) + len(call.name) > MOST_NAME_CHARS:
            raise ValueError("The name or id of a tool call is too long.")
        return is_new

    def calls(self, tools: WireTools) -> tuple[ToolCall, ...]:
        """Return the complete calls. A call without an id, or with the id of another one, gets a new id."""
        self._calls = [call for call in self._calls if not call.is_empty]
        ids = set[str]()
        for call in self._calls:
            call.id = call.id if call.id not in ids else ""
            call.id = call.id or tools.call("", call.name, "").id
            ids.add(call.id)
        return tuple(tools.call(call.id, call.name, call.text) for call in self._calls)

    def turn(self, text: str) -> dict[str, object] | None:
        """Return the turn to send back, or None if it has nothing but calls and text. `calls` sets the ids
        first.
        """
        if not self._thoughts and not any(call.extra for call in self._calls):
            return None
        thoughts = {
            name: pieces if name == "reasoning_details" else "".join(pieces)
            for name, pieces in self._thoughts.items()
        }
        return {
            "role": "assistant",
            "content": text or None,
            **thoughts,
            "tool_calls": [_native_call(call) for call in self._calls],
        }


def _starts_another(call: _Call, id: str, name: str, text: str) -> bool:
    """Return whether a piece starts a new call or continues `call`. Neither a new id nor the same name alone
    does, as some servers invent or repeat them.
    """
    if not (name and call.name) or (not id and _may_be_rest_of_name(call)):
        return False
    if id and call.id and id != call.id:
        return True
    if id:
        return name != call.name and call.is_whole
    return name != call.name or (bool(text.strip()) and call.is_whole)


def _may_be_rest_of_name(call: _Call) -> bool:
    """Return whether a name without an id may continue the name of `call`.

    A server that sends ids would send one with every new call.
    """
    return bool(call.id and call.name) and not call.text.strip()


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _native_call(call: _Call) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.text or "{}"}
    native: dict[str, object] = {"id": call.id, "type": "function", "function": function}
    return native | ({"extra_content": call.extra} if call.extra else {})
