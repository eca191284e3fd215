"""Tools on OpenAI's chat wire: what is offered, the calls in a stream's pieces, the turns of a conversation.

The wire: https://platform.openai.com/docs/guides/function-calling. A custom tool, whose input is free text, is
offered as a function with one field: few servers know OpenAI's own form, and none refuses this one.

A turn that called tools goes back exactly as the server wrote it, thoughts included: some servers want them on
every turn of a loop (https://api-docs.deepseek.com/guides/thinking_mode).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from conductor.model.messages import Image, Message, Native, Part, Text, ToolCall, ToolResult
from conductor.model.tools import Tool, ToolChoice, Toolset
from serving.workers.chat_chunks import ToolCallPiece

INPUT = "input"
"""The one field of a custom tool."""
FAILED = "The tool failed: "
"""Before what a tool gave that failed: the wire has no field for it."""
MOST_CALLS = 128
"""Of one turn; a server that makes more is out of order."""


def tools_json(tools: Toolset) -> dict[str, object]:
    """The fields of the body that offer tools; none where none may be called."""
    offered = tools.offered
    if not offered:
        return {}
    fields: dict[str, object] = {
        "tools": [_tool(tool) for tool in offered],
        "tool_choice": _choice(tools.choice),
    }
    return fields if tools.parallel else fields | {"parallel_tool_calls": False}


def parameters_of(tool: Tool) -> dict[str, Any]:
    """JSON Schema of a tool's arguments, as providers want it: an object."""
    if tool.kind == "custom":
        about = tool.format and f"In this format: {json.dumps(dict(tool.format))}"
        value = {"type": "string"} | ({"description": about} if about else {})
        return {"type": "object", "properties": {INPUT: value}, "required": [INPUT]}
    return dict(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}


def call_of(id: str, name: str, arguments: str, offered: Sequence[Tool]) -> ToolCall:
    """A call as its client offered the tool: the input of a custom one is text again."""
    tool = next((each for each in offered if each.name == name), None)
    if tool is None:
        return ToolCall(id, name, arguments)
    if tool.kind == "custom":
        arguments = _input(arguments)
    return ToolCall(id, name, arguments or ("" if tool.kind == "custom" else "{}"), tool.kind, tool.namespace)


def arguments_json(call: ToolCall) -> str:
    """A call's arguments as JSON text, also those of a custom tool."""
    return json.dumps({INPUT: call.arguments}) if call.kind == "custom" else call.arguments or "{}"


def result_text(result: ToolResult) -> str:
    """What a tool gave, in words; whether it failed is said with them."""
    return f"{FAILED}{result.text}" if result.is_error else result.text


def _input(arguments: str) -> str:
    try:
        read = json.loads(arguments)
    except ValueError:
        return arguments
    value = cast(dict[str, object], read).get(INPUT) if isinstance(read, dict) else read
    return value if isinstance(value, str) else arguments


def _tool(tool: Tool) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.name, "parameters": parameters_of(tool)}
    if tool.description:
        function["description"] = tool.description
    if tool.strict and tool.kind == "function":
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> object:
    if choice.mode == "required" and len(choice.names) == 1:
        return {"type": "function", "function": {"name": choice.names[0]}}
    return choice.mode


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


class ToolCallReader:
    """Puts the calls of one answer together from their pieces.

    Raises (in `feed`):
        ValueError: more calls than anybody makes.
    """

    def __init__(self) -> None:
        self._calls: dict[object, _Call] = {}
        self._newest: object = None

    def feed(self, pieces: Iterable[ToolCallPiece]) -> int:
        """Take pieces as they come; gives how many characters of arguments they have."""
        n_chars = 0
        for piece in pieces:
            key = self._key(piece)
            call = self._calls.setdefault(key, _Call())
            if len(self._calls) > MOST_CALLS:
                raise ValueError("more tool calls than a turn can have")
            self._newest = key
            said = piece.function
            call.id = piece.id or call.id
            if said is not None:
                call.name = said.name or call.name
                if said.arguments:
                    call.arguments.append(said.arguments)
                    n_chars += len(said.arguments)
        return n_chars

    def _key(self, piece: ToolCallPiece) -> object:
        """Which call a piece is of: its index, or, on servers that say none, a new one for each new id."""
        if piece.index is not None:
            return piece.index
        return piece.id or self._newest

    def calls(self, offered: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """The whole calls, in the order they were begun; one that has no id gets one."""
        return tuple(
            call_of(call.id or f"call_{n}", call.name, "".join(call.arguments), offered)
            for n, call in enumerate(self._calls.values())
        )

    def native(self, worker: str, account: str, text: str, reasoning: str, field: str) -> Native | None:
        """The turn as the server wrote it; None where it called no tool.

        Args:
            worker: who wrote it.
            account: of whose.
            text: said beside the calls.
            reasoning: its thoughts.
            field: the field in which it gave them; empty: none.
        """
        if not self._calls:
            return None
        calls = [
            {
                "id": call.id or f"call_{n}",
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for n, call in enumerate(self._calls.values())
        ]
        message: dict[str, object] = {"role": "assistant", "content": text or None, "tool_calls": calls}
        if reasoning and field:
            message[field] = reasoning
        return Native(worker, account, {"message": message})


def assistant_json(message: Message, worker: str, account: str) -> dict[str, object]:
    """A turn that called tools: as it was written where it is this worker's own, else in the wire's plain form."""
    native = message.native
    if native is not None and (native.worker, native.account) == (worker, account):
        return dict(native.payload["message"])
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_json(call)},
        }
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.text or None, "tool_calls": calls}


def results_json(message: Message) -> list[dict[str, object]]:
    """A message for each result."""
    return [
        {"role": "tool", "tool_call_id": each.id, "content": result_text(each)}
        for each in message.tool_results
    ]


def pictures_of(message: Message) -> Message | None:
    """The pictures that tools gave, as a message of the user's: the wire shows none in a result."""
    parts: list[Part] = [
        part for result in message.tool_results for part in result.parts if isinstance(part, Image)
    ]
    if not parts:
        return None
    return replace(message, role="user", parts=(Text("Pictures that the tools gave:"), *parts))
