"""Tools of a Responses request, and its `tool_choice`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from conductor.errors import BadTask, quote
from conductor.model.messages import AUTO, Tool, ToolChoice, Toolset
from serving.api.dialects.chat.tools import MOST_TOOLS, Custom, FunctionFields, ToolName, toolset
from serving.api.dialects.read_body import LenientModel
from serving.api.dialects.responses.schema import read_part

Json = dict[str, Any]


class _Namespace(LenientModel):
    name: ToolName
    tools: Annotated[list[Json], Field(fail_fast=True, max_length=MOST_TOOLS)]


class _Other(LenientModel):
    type: str = Field(max_length=128)


class _Choice(LenientModel):
    type: str = Field(max_length=128)
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[Json], Field(fail_fast=True, max_length=MOST_TOOLS)] = Field(
        default_factory=list[Json]
    )


def read_tools(
    items: Sequence[Json] | None, choice: str | Json | None, *, parallel: bool
) -> tuple[Toolset, tuple[str, ...]]:
    """Return the supported tools, and a note for each tool left out. Raise BadTask if one is invalid."""
    tools: list[Tool] = []
    hosted: dict[str, str] = {}
    for at, item, namespace in _flat(items or ()):
        match item.get("type"):
            case "function":
                function = read_part(FunctionFields, item, at)
                tools.append(
                    Tool(
                        function.name,
                        function.description,
                        function.parameters,
                        bool(function.strict),
                        namespace=namespace,
                    )
                )
            case "custom":
                own = read_part(Custom, item, at)
                is_free = own.format is None or own.format.get("type") == "text"
                tools.append(
                    Tool(
                        own.name,
                        own.description,
                        kind="custom",
                        namespace=namespace,
                        format=None if is_free else own.format,
                    )
                )
            case _:
                hosted[at] = read_part(_Other, item, at).type
    return toolset(tools, hosted, _choice(choice), parallel=parallel)


def _flat(tools: Sequence[Json]) -> Iterator[tuple[str, Json, str]]:
    """Yield each tool with its place and its namespace."""
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if tool.get("type") != "namespace":
            yield at, tool, ""
            continue
        space = read_part(_Namespace, tool, at)
        for n, inner in enumerate(space.tools):
            yield f"{at}.tools[{n}]", inner, space.name


def _choice(choice: str | Json | None) -> ToolChoice:
    match choice:
        case None:
            return AUTO
        case "auto" | "none" | "required":
            return ToolChoice(choice)
        case str():
            raise BadTask(
                f"tool_choice must be auto, none, required or a tool, not {quote(choice)}.",
                param="tool_choice",
            )
        case _:
            return _choice_by_name(read_part(_Choice, choice, "tool_choice"))


def _choice_by_name(choice: _Choice) -> ToolChoice:
    if choice.type in ("function", "custom") and choice.name:
        return ToolChoice("required", (choice.name,))
    if choice.type == "allowed_tools":
        named = tuple(
            str(tool.get("name")) for tool in choice.tools if tool.get("type") in ("function", "custom")
        )
        if named or choice.mode == "auto":
            return ToolChoice(choice.mode if named else "none", named)
    message = f"tool_choice.type: tools of type {quote(choice.type)} are not supported. Name a function or custom tool of the request."
    raise BadTask(message, param="tool_choice.type")
