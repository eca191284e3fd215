"""Tools in the language of Gemini's API: what goes out of a conversation, and the parts of a turn as they came.

https://ai.google.dev/gemini-api/docs/function-calling and .../thought-signatures. A signature belongs to the very part
that it came with, so the parts of a turn that calls tools go back one by one as they came. A call of another model has
no signature and is refused: it goes out as words.
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
    """The fields of the configuration that offer the tools. Whether calls come at once is the model's choice."""
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
    """The conversation without its system messages; neighbours of one role are one turn, but for the model's own.
    Empty words are left out. Results stand in the order of their calls, as the API wants them.

    Raises:
        ValueError: a turn of the model's own is none.
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
    """Results first, in the order of `order`; what stands beside them after all of them."""
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
    """The parts of an answer, as they came."""

    def __init__(self, meter: OutputMeter) -> None:
        self._meter = meter
        self._parts: list[types.Part] = []
        self.has_calls = False
        """Whether it calls tools."""

    def add(self, candidate: types.Candidate | None) -> bool:
        """The parts of the next chunk; such as say nothing are left out. Whether one of them calls a tool.

        Raises:
            OutputPassed: there is more than an answer may hold.
        """
        content = candidate.content if candidate else None
        parts = [part for part in (content.parts if content else None) or () if _says_something(part)]
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
        """The calls of tools in it; new ids for those without."""
        called = [part.function_call for part in self._parts if part.function_call]
        return tuple(tools.call(each.id or "", each.name or "", _text_of(each.args)) for each in called)

    def turn(self, calls: Iterable[ToolCall]) -> dict[str, object]:
        """The turn as it has to come back, and the ids of its `calls`, which the API may not know."""
        parts = [part.model_dump(mode="json", exclude_none=True) for part in self._parts]
        return {"parts": parts, "ids": [call.id for call in calls]}


def _says_something(part: types.Part) -> bool:
    return part.text != "" or part.thought_signature is not None


def _text_of(args: dict[str, Any] | None) -> str:
    return json.dumps(args or {})
