"""Tools in the language of Anthropic's messages: what goes out of a conversation, and a turn put together from its
events.

https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview. A turn that calls tools goes back with all of
its blocks, in their order: thoughts are signed, newer models' together with everything before them. So neighbours of
one role are joined only where nobody signed them.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

from anthropic.types import RawMessageStreamEvent

from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from serving.workers.wire_tools import WireTools, arguments_of, description_of, name_of, schema_of, wire_id

Block = dict[str, Any]
ShowPart = Callable[[Text | Image | File], Block]


def tools_json(tools: WireTools) -> dict[str, object]:
    """The fields of the body that offer the tools."""
    if not tools:
        return {}
    listed = [
        {
            "name": name_of(tool.namespace, tool.name),
            "description": description_of(tool),
            "input_schema": {"type": "object", **schema_of(tool)},
        }
        for tool in tools.tools
    ]
    return {"tools": listed, "tool_choice": _choice(tools)}


def _choice(tools: WireTools) -> dict[str, object]:
    if not tools.is_offered:
        return {"type": "none"}
    parallel: dict[str, object] = {} if tools.parallel else {"disable_parallel_tool_use": True}
    if tools.forced:
        return {"type": "tool", "name": tools.forced, **parallel}
    return {"type": "any" if tools.choice.mode == "required" else "auto", **parallel}


def turns_json(messages: Iterable[Message], show: ShowPart) -> list[dict[str, object]]:
    """The conversation without its system messages; neighbours of one role are one turn, but for turns that are
    the provider's own. Empty words are left out; results of tools come first in their turn.
    """
    turns: list[dict[str, object]] = []
    is_closed = True
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if message.native is not None:
            turns.append({"role": role, "content": message.native.payload})
            is_closed = True
            continue
        blocks = [block for part in message.parts for block in _blocks(part, show)]
        if not blocks:
            continue
        if is_closed or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        cast(list[Block], turns[-1]["content"]).extend(blocks)
        is_closed = False
    return turns


def _blocks(part: Part, show: ShowPart) -> list[Block]:
    match part:
        case ToolCall():
            name = name_of(part.namespace, part.name)
            return [{"type": "tool_use", "id": wire_id(part.id), "name": name, "input": arguments_of(part)}]
        case ToolResult():
            return [_result(part, show)]
        case Text(text=""):
            return []
        case _:
            return [show(part)]


def _result(result: ToolResult, show: ShowPart) -> Block:
    content = [block for part in result.parts for block in _blocks(part, show)]
    if result.is_error and not content:
        content = [{"type": "text", "text": "The tool failed."}]  # the API wants to be told of a failure
    block: Block = {"type": "tool_result", "tool_use_id": wire_id(result.id), "content": content}
    return block | ({"is_error": True} if result.is_error else {})


class TurnCollector:
    """The blocks of an answer, put together from its events."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._inputs: dict[int, list[str]] = {}

    def add(self, event: RawMessageStreamEvent) -> None:
        """The next event."""
        if event.type == "content_block_start":
            self._blocks[event.index] = event.content_block.model_dump(mode="json", exclude_none=True)
        elif event.type == "content_block_delta" and event.index in self._blocks:
            self._extend(event.index, event.delta)

    def _extend(self, index: int, delta: Any) -> None:
        block = self._blocks[index]
        match delta.type:
            case "text_delta":
                block["text"] = block.get("text", "") + delta.text
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.thinking
            case "signature_delta":
                block["signature"] = delta.signature
            case "input_json_delta":
                self._inputs.setdefault(index, []).append(delta.partial_json)
            case _:
                pass

    def calls(self, tools: WireTools) -> tuple[ToolCall, ...]:
        """The calls of tools in it."""
        return tuple(
            tools.call(block["id"], block["name"], self._input_text(index))
            for index, block in sorted(self._blocks.items())
            if block["type"] == "tool_use"
        )

    def turn(self) -> list[Block]:
        """All blocks as they have to come back; empty words are refused there.

        Raises:
            ValueError: a call's input is no JSON.
        """
        turn: list[Block] = []
        for index, block in sorted(self._blocks.items()):
            if block["type"] == "tool_use":
                block = {**block, "input": json.loads(self._input_text(index))}
            if block["type"] != "text" or block.get("text"):
                turn.append(block)
        return turn

    def _input_text(self, index: int) -> str:
        written = "".join(self._inputs.get(index, ()))
        return written or json.dumps(self._blocks[index].get("input") or {})
