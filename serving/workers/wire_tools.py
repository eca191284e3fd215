"""Conversion of tools to a form that all providers accept: functions with plain names and a JSON object as
arguments.

A custom tool, whose input is free text, becomes a function with one text argument.
"""

import hashlib
import json
import re
import uuid
from typing import Any, NamedTuple, cast

from conductor.model.characters import whole_value
from conductor.model.messages import Tool, ToolCall, Toolset
from serving.schemas.arguments import object_schema

NAME_CHARS = 64
"""Longest function name that all providers accept."""
ID_CHARS = 40
"""Longest id of a tool call that all providers accept."""
INPUT = "input"
"""Name of the only argument of a function that replaces a custom tool."""
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class WireTools:
    """Tools of a request, and their names in the provider's API.

    Args:
        toolset: the call's tools.
        history: whether the conversation has tool calls in the provider's own form. If so, the tools are sent
            even if none may be called, because providers need the definitions of the tools that were called,
            and their signatures cover them.
    """

    def __init__(self, toolset: Toolset, *, history: bool = False) -> None:
        self.is_offered = bool(toolset.offered)
        self.tools = toolset.offered or (toolset.tools if history else ())
        self.choice = toolset.choice
        self.parallel = toolset.parallel
        self._by_name = {name_of(tool.namespace, tool.name): tool for tool in self.tools}

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def forced(self) -> str | None:
        """Name of the function that must be called, or None if no particular one must be called."""
        if self.choice.mode != "required" or len(self._by_name) != 1 or not self.choice.names:
            return None
        return next(iter(self._by_name))

    def call(self, id: str, name: str, arguments: str, *, is_text: bool = False) -> ToolCall:
        """Convert a provider's tool call to the client's. A missing id is made. An unknown tool is passed on,
        so that the client can report it. With `is_text`, the arguments are plain text.
        """
        values = cast(tuple[object, ...], (id, name, arguments))
        if not name or not all(isinstance(each, str) for each in values):
            raise ValueError("A tool call has no name, or its id, name or arguments are not text.")
        arguments = _whole_arguments(arguments)
        tool = self._by_name.get(name)
        id = id or f"call_{uuid.uuid4().hex[:24]}"
        if tool is None:
            return ToolCall(id, name, arguments or "{}")
        if tool.kind == "custom" and not is_text:
            arguments = _input_of(arguments)
        return ToolCall(
            id, tool.name, arguments or ("{}" if tool.kind == "function" else ""), tool.kind, tool.namespace
        )


def name_of(namespace: str, name: str) -> str:
    """Return the unique name of a tool in a provider's API."""
    whole = f"{namespace}__{name}" if namespace else name
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", whole)
    if plain == whole and len(plain) <= NAME_CHARS:
        return plain
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: NAME_CHARS - 9]}_{digest}"


def wire_id(id: str) -> str:
    """Convert the id of a tool call to a form that all providers accept. Equal ids give equal results."""
    if re.fullmatch(rf"[A-Za-z0-9_-]{{1,{ID_CHARS}}}", id):
        return id
    return "call_" + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


class WireFunction(NamedTuple):
    name: str
    description: str
    """Description for the model. It includes the parts of the schema that could not be converted."""
    schema: dict[str, Any]
    """JSON Schema of the arguments, of type `object`."""
    is_strict: bool
    """Whether the provider can enforce the schema, which it cannot after a union was flattened."""


def function_of(tool: Tool) -> WireFunction:
    """Return the function to send in place of a tool.

    The function for a custom tool has one text argument, and its description includes the tool's format.
    """
    name = name_of(tool.namespace, tool.name)
    if tool.kind == "function":
        schema, lost_rules = object_schema(tool.parameters)
        return WireFunction(
            name,
            "\n\n".join(filter(None, (tool.description, lost_rules))),
            schema,
            tool.strict and not lost_rules,
        )
    form = f"The format of `{INPUT}`: {json.dumps(tool.format)}" if tool.format else ""
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return WireFunction(name, "\n\n".join(filter(None, (tool.description, form))), schema, is_strict=False)


def arguments_text(call: ToolCall) -> str:
    """Return the arguments as a JSON object, wrapped in the field `input` if they are none."""
    if call.kind == "custom":
        return json.dumps({INPUT: call.arguments})
    return call.arguments if _object_of(call.arguments) is not None else json.dumps({INPUT: call.arguments})


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as an object. Arguments that are not an object are wrapped in the field `input`."""
    return {INPUT: call.arguments} if call.kind == "custom" else object_or_input(call.arguments)


def object_or_input(text: str) -> dict[str, Any]:
    """Parse JSON text as an object. If it is not an object, return one with `text` in the field `input`."""
    value = _object_of(text)
    return {INPUT: text} if value is None else value


def _whole_arguments(text: str) -> str:
    """Return JSON text without escaped lone surrogates, which its reader would be unable to encode."""
    if not _ESCAPED_HALF.search(text):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if (repaired := whole_value(value)) == value else json.dumps(repaired, ensure_ascii=False)


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], whole_value(value)) if isinstance(value, dict) else None


def _input_of(arguments: str) -> str:
    """Return the text in a custom tool's arguments, or all of them if the model ignored the schema."""
    text = (_object_of(arguments) or {}).get(INPUT)
    return text if isinstance(text, str) else arguments
