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
from serving.workers.output_limit import OutputMeter
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

    def __init__(self, meter: OutputMeter) -> None:
        self._meter = meter
        self._blocks: dict[int, Block] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """Of what each block holds, by the name of its field."""

    def add(self, event: RawMessageStreamEvent) -> bool:
        """The next event; whether it tells of a block, or more of a call's input, than was known.

        Raises:
            OutputPassed: there is more than an answer may hold.
        """
        if event.type == "content_block_start":
            is_new = event.index not in self._blocks
            self._begin(event.index, event.content_block.model_dump(mode="json", exclude_none=True))
            return is_new
        if event.type == "content_block_delta" and event.index in self._blocks:
            return self._extend(event.index, event.delta)
        return False

    def _begin(self, index: int, block: Block) -> None:
        self._meter.keep(block)
        if block["type"] == "tool_use":
            self._meter.begin_call()
        for name in ("text", "thinking"):
            if block.get(name):
                self._pieces[index, name] = [block[name]]
        self._blocks[index] = block

    def _extend(self, index: int, delta: Any) -> bool:
        match delta.type:
            case "text_delta":
                self._pieces.setdefault((index, "text"), []).append(delta.text)
            case "thinking_delta":
                self._pieces.setdefault((index, "thinking"), []).append(delta.thinking)
            case "signature_delta":
                self._blocks[index]["signature"] = delta.signature
            case "input_json_delta" if delta.partial_json:
                self._meter.add_arguments(delta.partial_json)
                self._pieces.setdefault((index, "input"), []).append(delta.partial_json)
                return True
            case _:
                pass
        return False

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
        for index, begun in sorted(self._blocks.items()):
            said = {
                name: "".join(self._pieces[index, name])
                for name in ("text", "thinking")
                if (index, name) in self._pieces
            }
            block = {**begun, **said}
            if block["type"] == "tool_use":
                block["input"] = json.loads(self._input_text(index))
            if block["type"] != "text" or block.get("text"):
                turn.append(block)
        return turn

    def _input_text(self, index: int) -> str:
        written = "".join(self._pieces.get((index, "input"), ()))
        return written or json.dumps(self._blocks[index].get("input") or {})
