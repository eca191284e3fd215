"""Tools as every provider's wire can have them: functions with plain names, whose arguments are a JSON object.

A custom tool, whose input is free text, becomes a function with one text. Knows no provider's JSON.
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
"""The longest name of a function that all providers take."""
ID_CHARS = 40
"""The longest id of a call that all providers take."""
INPUT = "input"
"""The one argument of the function that stands for a custom tool."""
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class WireTools:
    """The tools that go out with a call, by the names that they have there.

    Args:
        toolset: of the call.
        history: whether the conversation has calls in the provider's own form. Then its tools go out also where
            none may be called: a provider that is shown calls wants to know of what, and binds its signatures
            to the tools.
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
        """The name of the one function that has to be called; None: any, or none."""
        if self.choice.mode != "required" or len(self._by_name) != 1 or not self.choice.names:
            return None
        return next(iter(self._by_name))

    def call(self, id: str, name: str, arguments: str, *, is_text: bool = False) -> ToolCall:
        """A call that came back, as a call of the client's tool. One without an id is given one; one of a tool that
        is not known goes on as it is: the client says so to the model.

        Args:
            id: as the provider gave it; empty: none.
            name: on the wire.
            arguments: as the model wrote them.
            is_text: the arguments are the input of a custom tool as it stands.

        Raises:
            ValueError: it names no tool, or what a lenient decoder took for one of these is no text.
        """
        given = cast(tuple[object, ...], (id, name, arguments))
        if not name or not all(isinstance(each, str) for each in given):
            raise ValueError("A call names no tool, or with what is no text.")
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
    """The name of a tool on the wire; another one for each."""
    whole = f"{namespace}__{name}" if namespace else name
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", whole)
    if plain == whole and len(plain) <= NAME_CHARS:
        return plain
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: NAME_CHARS - 9]}_{digest}"


def wire_id(id: str) -> str:
    """The id of a call that another provider gave, as all providers take it; the same for the same."""
    if re.fullmatch(rf"[A-Za-z0-9_-]{{1,{ID_CHARS}}}", id):
        return id
    return "call_" + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


class WireFunction(NamedTuple):
    """A tool as a function."""

    name: str
    description: str
    """For the model, with what the schema cannot say."""
    schema: dict[str, Any]
    """JSON Schema of the arguments: one object."""
    is_strict: bool
    """Whether a provider can hold the arguments to the schema. Not after a union was flattened: properties may be left out."""


def function_of(tool: Tool) -> WireFunction:
    """Return the function that stands for a tool. A custom tool becomes one with a text, and its format is described."""
    name = name_of(tool.namespace, tool.name)
    if tool.kind == "function":
        schema, lost = object_schema(tool.parameters)
        return WireFunction(
            name, "\n\n".join(filter(None, (tool.description, lost))), schema, tool.strict and not lost
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
    """The arguments as JSON text of an object: a model that wrote something else is shown it in `input`."""
    if call.kind == "custom":
        return json.dumps({INPUT: call.arguments})
    return call.arguments if _object_of(call.arguments) is not None else json.dumps({INPUT: call.arguments})


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object."""
    return {INPUT: call.arguments} if call.kind == "custom" else object_or_input(call.arguments)


def object_or_input(text: str) -> dict[str, Any]:
    """The object in JSON text; `text` in its field `input` where it is none."""
    value = _object_of(text)
    return {INPUT: text} if value is None else value


def _whole_arguments(text: str) -> str:
    """`text`, in which JSON escapes no half of a character that whoever reads it could not write."""
    if not _ESCAPED_HALF.search(text):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if (mended := whole_value(value)) == value else json.dumps(mended, ensure_ascii=False)


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], whole_value(value)) if isinstance(value, dict) else None


def _input_of(arguments: str) -> str:
    """The free text that the function's arguments hold; all of them where the model did not keep to it."""
    given = (_object_of(arguments) or {}).get(INPUT)
    return given if isinstance(given, str) else arguments
