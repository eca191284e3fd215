"""Conversion of conversations to input items of OpenAI's Responses API, and of its events to the items of an
answer.

API: https://platform.openai.com/docs/guides/function-calling and .../reasoning#encrypted-reasoning-items. A
turn that calls tools is sent back unchanged, item by item. A reasoning item must precede the call to which it
led, and only the organisation that received its `encrypted_content` may send it back.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from conductor.model.messages import File, Image, Message, Text, Tool, ToolCall, ToolResult
from serving.workers.chat_chunks import fields, text_of
from serving.workers.chat_tools import NOTHING
from serving.workers.openai_options import ShowMark, no_marks
from serving.workers.output_limit import OutputMeter
from serving.workers.picture_urls import split_data_url
from serving.workers.usage import integer
from serving.workers.wire_tools import WireTools, arguments_text, function_of, name_of, wire_id

Item = dict[str, Any]
CUSTOM = "custom_tool_call"
CALLS = ("function_call", CUSTOM)
ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
DONE = "response.output_item.done"
ITEMS = ("response.output_item.added", DONE)
CONTENT = ("name", "arguments", "input", "encrypted_content", "summary")
SPOKEN = ("message", "reasoning")


def tools_json(tools: WireTools, *, takes_custom: bool) -> dict[str, object]:
    """Return the request fields for the tools, if possible as custom tools."""
    if not tools:
        return {}
    listed = [_tool_json(tool, takes_custom) for tool in tools.tools]
    fields: dict[str, object] = {"tools": listed, "parallel_tool_calls": tools.parallel}
    if not tools.is_offered:
        return fields | {"tool_choice": "none"}
    if tools.forced:
        return fields | {"tool_choice": {"type": listed[0]["type"], "name": tools.forced}}
    return fields | ({"tool_choice": "required"} if tools.choice.mode == "required" else {})


def _tool_json(tool: Tool, takes_custom: bool) -> Item:
    if tool.kind == "custom" and takes_custom:
        name = name_of(tool.namespace, tool.name)
        format = {"format": dict(tool.format)} if tool.format else {}
        return {"type": "custom", "name": name, "description": tool.description, **format}
    function = function_of(tool)
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.schema,
        "strict": function.is_strict,
    }


def input_json(
    messages: Iterable[Message], *, takes_custom: bool, show_mark: ShowMark = no_marks
) -> list[Item]:
    """Return the conversation as input items. Raise ValueError for a malformed picture."""
    items: list[Item] = []
    customs: set[str] = set()
    for message in messages:
        if message.native is not None:
            own = [dict(cast(Mapping[str, Any], item)) for item in message.native.payload]
            customs |= {str(item.get("call_id")) for item in own if item.get("type") == CUSTOM}
            items += own
            continue
        parts = tuple(part for part in message.parts if isinstance(part, Text | Image | File))
        if parts:
            items.append({"role": message.role, "content": _content(message, parts, show_mark)})
        for call in message.tool_calls:
            customs |= {call.id} if takes_custom and call.kind == "custom" else set()
            items.append(_call(call, is_custom=call.id in customs))
        items += [
            _result(result, is_custom=result.id in customs, show_mark=show_mark)
            for result in message.tool_results
        ]
    return items


def _content(message: Message, parts: tuple[Text | Image | File, ...], show_mark: ShowMark) -> object:
    """Return a message's content as plain text, or as parts for pictures, files and cache marks. An
    assistant's text has no marks.
    """
    shows_more = message.role == "user" and any(not isinstance(part, Text) for part in parts)
    has_marks = message.role != "assistant" and any(show_mark(part.cache) for part in parts)
    return [_part(part, show_mark) for part in parts] if shows_more or has_marks else message.text


def _part(part: Text | Image | File, show_mark: ShowMark) -> Item:
    mark = show_mark(part.cache)
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text, **mark}
    if isinstance(part, File):
        return {"type": "input_file", "filename": part.name, "file_data": part.url, **mark}
    if part.url.startswith("data:"):
        split_data_url(part.url)  # raises here what the server would reject later
    return {"type": "input_image", "image_url": part.url, "detail": part.detail, **mark}


def _call(call: ToolCall, *, is_custom: bool) -> Item:
    name, id = name_of(call.namespace, call.name), wire_id(call.id)
    if is_custom:
        return {"type": CUSTOM, "call_id": id, "name": name, "input": call.arguments}
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments_text(call)}


def _result(result: ToolResult, *, is_custom: bool, show_mark: ShowMark) -> Item:
    parts = (Text("The tool failed."), *result.parts) if result.is_error else result.parts
    shows_more = any(not isinstance(part, Text) or show_mark(part.cache) for part in parts)
    words = "\n".join(part.text for part in parts if isinstance(part, Text))
    return {
        "type": "custom_tool_call_output" if is_custom else "function_call_output",
        "call_id": wire_id(result.id),
        "output": [_part(part, show_mark) for part in parts] if shows_more else words or NOTHING,
    }


class ItemCollector:
    """Collector of an answer's unchanged items. Servers send each up to three times (begin, completion, end
    of the answer), and may give all the same index.
    """

    def __init__(self, meter: OutputMeter) -> None:
        self._meter = meter
        self._items: list[tuple[int, Item]] = []
        """Complete items with their index."""
        self._initial_items: dict[int, Item] = {}
        self._called: set[int] = set()
        self._argument_pieces: dict[int, list[str]] = {}
        """Pieces of each call's arguments."""

    def add(self, event: Mapping[str, object]) -> bool:
        """Add the next event. Return whether it contains a new item or new arguments of a tool call."""
        kind, item = event.get("type"), fields(event.get("item"))
        index = integer(event.get("output_index"))
        if kind in ARGUMENTS and isinstance(piece := event.get("delta"), str) and piece:
            self._meter.add_arguments(piece)
            self._argument_pieces.setdefault(index or 0, []).append(piece)
            return True
        if kind not in ITEMS or not item:
            return False
        if index is None:
            index = len(self._items)
        is_new = index not in self._initial_items
        if is_new:
            self._meter.keep(None)
            self._initial_items[index] = item
        if item.get("type") in CALLS and index not in self._called:
            self._called.add(index)
            self._meter.begin_call()
        return (kind == DONE and self._keep(index, item)) or is_new

    def end(self, output: object) -> None:
        """Add items that only the final `output` contains, and those that were never completed."""
        for index, item in enumerate(cast(list[object], output) if isinstance(output, list) else []):
            self._keep(index, fields(item))
        for index, item in self._initial_items.items():
            if all(index != other for other, _ in self._items):
                self._keep(index, item)

    def _keep(self, index: int, item: Item) -> bool:
        """Store an item unless it is stored already. Return whether it was stored."""
        if any(_is_same(item, other) for _, other in self._items):
            return False
        if item.get("type") in CALLS:
            name = "input" if item.get("type") == CUSTOM else "arguments"
            value, streamed_text = item.get(name), "".join(self._argument_pieces.get(index, ()))
            text = value if isinstance(value, str) else json.dumps(value) if value else ""
            self._meter.add_arguments(text[len(streamed_text) :])
            item = item | {name: text or streamed_text}
        self._meter.keep(item)
        self._items.append((index, item))
        return True

    @property
    def has_calls(self) -> bool:
        return any(item.get("type") in CALLS for _, item in self._items)

    @property
    def items(self) -> list[Item]:
        return [item for _, item in sorted(self._items, key=lambda each: each[0])]

    def calls(self, tools: WireTools) -> tuple[ToolCall, ...]:
        calls: list[ToolCall] = []
        for item in self.items:
            id, name = str(item.get("call_id") or ""), str(item.get("name") or "")
            if item.get("type") == "function_call":
                calls.append(tools.call(id, name, item["arguments"]))
            elif item.get("type") == CUSTOM:
                calls.append(tools.call(id, name, item["input"], is_text=True))
        return tuple(calls)

    @property
    def words(self) -> tuple[str, str]:
        """Answer text and reasoning text in the items."""
        texts = {kind: [text_of(each) for each in self.items if each.get("type") == kind] for kind in SPOKEN}
        return "".join(texts["message"]), "".join(texts["reasoning"])

    @property
    def is_refused(self) -> bool:
        parts = [part for each in self.items for part in cast(list[object], each.get("content") or ())]
        return any(fields(part).get("type") == "refusal" for part in parts)


def _is_same(item: Item, other: Item) -> bool:
    """Return whether the server sent the same item twice, as `item` and as `other`."""
    if item.get("type") != other.get("type"):
        return False
    ids = [(each.get("call_id"), each.get("id")) for each in (item, other)]
    pairs = [(one, two) for one, two in zip(*ids, strict=True) if one and two]
    if pairs:
        return any(one == two for one, two in pairs)
    return item.get("type") == "message" or all(item.get(name) == other.get(name) for name in CONTENT)
