"""Messages and tools in the format of Gemini's API, and the parts of an answer.

API: https://ai.google.dev/gemini-api/docs/function-calling and .../thought-signatures. A signature belongs to
the part with which it arrived, so the parts of a turn that calls tools are sent back unchanged. Calls of
other models have no signature and would be rejected, so they are sent as text.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from google.genai import types

from conductor.model.messages import File, Image, Message, Text, ToolCall, ToolResult
from serving.workers.output_limit import OutputMeter
from serving.workers.wire_tools import WireTools, arguments_of, function_of, name_of

Part = dict[str, Any]
ShowPart = Callable[[Text | Image | File], Part]


def tools_config(tools: WireTools) -> dict[str, Any]:
    """Return the configuration fields for the tools. The API has no option for parallel calls."""
    if not tools:
        return {}
    listed = [
        types.FunctionDeclaration(
            name=function.name, description=function.description, parameters_json_schema=function.schema
        )
        for function in map(function_of, tools.tools)
    ]
    mode = types.FunctionCallingConfigMode.AUTO
    if not tools.is_offered:
        mode = types.FunctionCallingConfigMode.NONE
    elif tools.choice.mode == "required":
        mode = types.FunctionCallingConfigMode.ANY
    calling = types.FunctionCallingConfig(mode=mode)
    return {
        "tools": [types.Tool(function_declarations=listed)],
        "tool_config": types.ToolConfig(function_calling_config=calling),
    }


def contents_json(messages: Iterable[Message], show: ShowPart) -> list[dict[str, Any]]:
    """Return the turns without system messages and empty text, merged by role except native ones. Tool
    results have the order of their calls.
    """
    contents: list[dict[str, Any]] = []
    calls: dict[str, Part] = {}
    is_closed = True
    for message in messages:
        if message.role == "system":
            continue
        role = "model" if message.role == "assistant" else "user"
        if message.native is not None:
            parts, ids = message.native.payload["parts"], message.native.payload["ids"]
            types.Content.model_validate({"parts": parts})
            called = [part["function_call"] for part in parts if "function_call" in part]
            calls |= dict(zip(ids, called, strict=False))
            contents.append({"role": role, "parts": parts})
            is_closed = True
            continue
        parts = _parts(message, calls, show)
        if not parts:
            continue
        if is_closed or contents[-1]["role"] != role:
            contents.append({"role": role, "parts": []})
        contents[-1]["parts"] += parts
        is_closed = False
    for content in contents:
        _sort_results(content, list(calls))
    return [{"role": each["role"], "parts": [_bare(part) for part in each["parts"]]} for each in contents]


def _parts(message: Message, calls: dict[str, Part], show: ShowPart) -> list[Part]:
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolResult():
                parts.append(_result(part, calls.get(part.id, {})))
                parts += [show(each) for each in part.parts if not isinstance(each, Text)]
            case ToolCall():
                called = {"name": name_of(part.namespace, part.name), "args": arguments_of(part)}
                calls[part.id] = called
                parts.append({"function_call": called})
            case Text(text=""):
                pass
            case _:
                parts.append(show(part))
    return parts


def _result(result: ToolResult, called: Part) -> Part:
    response = {
        "name": called.get("name", "unknown"),
        "response": {"error" if result.is_error else "output": result.text},
    }
    if called.get("id"):
        response["id"] = called["id"]
    return {"function_response": response, "_id": result.id}


def _sort_results(content: dict[str, Any], order: Sequence[str]) -> None:
    """Move the tool results of a turn to its front, in the order of their calls, whose ids are in `order`."""
    parts = cast(list[Part], content["parts"])
    if any("_id" in part for part in parts):
        results = sorted(
            (part for part in parts if "_id" in part), key=lambda part: _place(part["_id"], order)
        )
        content["parts"] = [*results, *(part for part in parts if "_id" not in part)]


def _place(id: str, order: Sequence[str]) -> int:
    return order.index(id) if id in order else len(order)


def _bare(part: Part) -> Part:
    return {name: value for name, value in part.items() if name != "_id"}


class PartCollector:
    """Collector of an answer's parts, which are stored unchanged."""

    def __init__(self, meter: OutputMeter) -> None:
        self._meter = meter
        self._parts: list[types.Part] = []
        self.has_calls = False
        """Whether the answer calls tools."""

    def add(self, candidate: types.Candidate | None) -> bool:
        """Add the next chunk's parts that are not empty. Return whether one of them calls a tool."""
        content = candidate.content if candidate else None
        parts = [part for part in (content.parts if content else None) or () if not _is_empty(part)]
        called = [part.function_call for part in parts if part.function_call]
        for call in called:
            self._meter.begin_call()
            self._meter.add_arguments(json.dumps(call.args or {}, ensure_ascii=False))
        for part in parts:
            if not part.text or part.thought_signature:
                self._meter.keep(part.model_dump(mode="json", exclude_none=True))
        self._parts += parts
        self.has_calls |= bool(called)
        return bool(called)

    def calls(self, tools: WireTools) -> tuple[ToolCall, ...]:
        """Return the tool calls. A call without an id gets a new one."""
        called = [part.function_call for part in self._parts if part.function_call]
        return tuple(
            tools.call(each.id or "", each.name or "", json.dumps(each.args or {})) for each in called
        )

    def turn(self, calls: Iterable[ToolCall]) -> dict[str, object]:
        """Return the turn to send back, with the ids of its `calls`, which the API may not have sent."""
        parts = [part.model_dump(mode="json", exclude_none=True) for part in self._parts]
        return {"parts": parts, "ids": [call.id for call in calls]}


def _is_empty(part: types.Part) -> bool:
    return part.text == "" and part.thought_signature is None
