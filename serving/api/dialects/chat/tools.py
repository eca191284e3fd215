"""Tools of a chat completion, including those that a provider hosts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag

from conductor.errors import BadTask, quote
from conductor.model.messages import AUTO, Tool, ToolCall, ToolChoice, Toolset
from serving.api.dialects.read_body import LenientModel, MarkFields, NullableText

HostedTools = Mapping[str, str]
"""Type of each hosted tool, by its place in the request. A hosted tool is one that a provider runs."""


def toolset(
    tools: Sequence[Tool], hosted: HostedTools, choice: ToolChoice, *, parallel: bool
) -> tuple[Toolset, tuple[str, ...]]:
    """Return the supported tools, and a note for each omitted tool."""
    names = Counter((tool.namespace, tool.name) for tool in tools)
    if double := next((name for (_, name), count in names.items() if count > 1), None):
        raise BadTask(f"tools: two tools are named {quote(double)}. Rename one of them.", param="tools")
    _check_choice(choice, {tool.name for tool in tools}, hosted)
    left_out = tuple(
        f"{place} was ignored, because tools of type {quote(kind)} are not supported."
        for place, kind in hosted.items()
    )
    return Toolset(tuple(tools), choice, parallel), left_out


def _check_choice(choice: ToolChoice, names: set[str], hosted: HostedTools) -> None:
    if unknown := next((name for name in choice.names if name not in names), None):
        message = (
            f"tool_choice names {quote(unknown)}, but `tools` contains no supported tool with this name."
        )
        raise BadTask(message, param="tool_choice")
    if choice.mode != "required" or choice.names:
        return
    if hosted:
        place, kind = next(iter(hosted.items()))
        message = (
            f"{place}: tools of type {quote(kind)} are not supported, but tool_choice requires a call. "
            "Remove the tool, or set tool_choice to auto."
        )
        raise BadTask(message, param=place)
    if not names:
        raise BadTask(
            "tool_choice requires a tool call, but the request has no `tools`.", param="tool_choice"
        )


MOST_TOOLS = 1024
"""Maximum number of tools of a request, and of calls in a message."""
Json = dict[str, Any]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
"""Name of a tool that any provider allows. The workers' clients check each provider's rules."""
CalledName = Annotated[str, Field(min_length=1)]
"""Name of a tool in a call. A model may call a tool that does not exist, and the client sends that back."""


class FunctionFields(LenientModel):
    """Name, description and input format of a function."""

    name: ToolName
    description: NullableText = ""
    parameters: Json | None = None
    strict: bool | None = None


class Function(FunctionFields, MarkFields):
    """Function that the model may call."""


class FunctionTool(MarkFields):
    """Tool with JSON arguments."""

    type: Literal["function"] = "function"
    function: Function

    def to_tool(self) -> Tool:
        """Return the tool in the form that all dialects share."""
        function = self.function
        own, inner = self.mark, function.mark
        return Tool(
            function.name,
            function.description,
            function.parameters,
            bool(function.strict),
            cache=own or inner,
        )


class Custom(LenientModel):
    """Name, description and input format of a custom tool."""

    name: ToolName
    description: NullableText = ""
    format: Json | None = None


class CustomTool(MarkFields):
    """Tool with free text as input."""

    type: Literal["custom"]
    custom: Custom

    def to_tool(self) -> Tool:
        """Return the tool in the form that all dialects share."""
        custom = self.custom
        is_free = custom.format is None or custom.format.get("type") == "text"
        format = None if is_free else custom.format
        return Tool(custom.name, custom.description, kind="custom", format=format, cache=self.mark)


class HostedTool(LenientModel):
    """Tool of any other type, which a provider would run."""

    type: str = Field(max_length=128)


# Names of types have a space, so that they cannot be mistaken for fields (`read_body.place`).
def _sort(value: Any) -> str:
    kind: object = cast(Json, value).get("type", "function") if isinstance(value, dict) else "function"
    return f"{kind} tool" if kind in ("function", "custom") else "hosted tool"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("function tool")]
    | Annotated[CustomTool, Tag("custom tool")]
    | Annotated[HostedTool, Tag("hosted tool")],
    Discriminator(_sort),
]


class _Named(LenientModel):
    name: str


class NamedTool(LenientModel):
    """Reference to one tool by its name."""

    type: str
    function: _Named | None = None
    custom: _Named | None = None
    name: str | None = None

    @property
    def tool_name(self) -> str:
        """The name, or the type if the tool has no name."""
        tool = self.function or self.custom
        return tool.name if tool else self.name or self.type


class AllowedTools(LenientModel):
    """Tools that the model may call."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MOST_TOOLS)]


class AllowedChoice(LenientModel):
    """`tool_choice` that allows only some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _sort_of_choice(value: Any) -> str:
    if not isinstance(value, dict):
        return "mode"
    return "allowed" if cast(Json, value).get("type") == "allowed_tools" else "named"


Choice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("mode")]
    | Annotated[AllowedChoice, Tag("allowed")]
    | Annotated[NamedTool, Tag("named")],
    Discriminator(_sort_of_choice),
]


class ChatToolFields(LenientModel):
    """Fields of a request for tools."""

    tools: Annotated[list[AnyTool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def toolset(self) -> tuple[Toolset, tuple[str, ...]]:
        """The supported tools, and a note for each omitted tool. Raises `BadTask` for a contradictory
        `tool_choice`.
        """
        tools: Sequence[AnyTool] = self.tools or ()
        own = [tool.to_tool() for tool in tools if not isinstance(tool, HostedTool)]
        hosted = {
            f"tools[{index}]": tool.type for index, tool in enumerate(tools) if isinstance(tool, HostedTool)
        }
        return toolset(own, hosted, self._choice, parallel=self.parallel_tool_calls is not False)

    @property
    def _choice(self) -> ToolChoice:
        match self.tool_choice:
            case None:
                return AUTO
            case AllowedChoice(allowed_tools=allowed):
                hosted = {tool.type for tool in self.tools or () if isinstance(tool, HostedTool)}
                names = tuple(tool.tool_name for tool in allowed.tools if tool.type not in hosted)
                if not names and allowed.mode == "auto":  # all allowed tools are unsupported
                    return ToolChoice("none")
                return ToolChoice(allowed.mode, names or tuple(tool.tool_name for tool in allowed.tools))
            case NamedTool() as tool:
                return ToolChoice("required", (tool.tool_name,))
            case mode:
                return ToolChoice(mode)


class _FunctionOfCall(LenientModel):
    name: CalledName
    arguments: NullableText = ""


class FunctionCall(LenientModel):
    """Function call by an assistant."""

    id: str = Field(min_length=1, max_length=1024)
    type: Literal["function"] = "function"
    function: _FunctionOfCall

    def to_call(self) -> ToolCall:
        """Return the call in the form that all dialects share."""
        return ToolCall(self.id, self.function.name, self.function.arguments)


class _CustomOfCall(LenientModel):
    name: CalledName
    input: NullableText = ""


class CustomCall(LenientModel):
    """Custom tool call by an assistant."""

    id: str = Field(min_length=1, max_length=1024)
    type: Literal["custom"]
    custom: _CustomOfCall

    def to_call(self) -> ToolCall:
        """Return the call in the form that all dialects share."""
        return ToolCall(self.id, self.custom.name, self.custom.input, "custom")


def _sort_of_call(value: Any) -> str:
    is_custom = isinstance(value, dict) and cast(Json, value).get("type") == "custom"
    return "custom call" if is_custom else "function call"


AnyCall = Annotated[
    Annotated[FunctionCall, Tag("function call")] | Annotated[CustomCall, Tag("custom call")],
    Discriminator(_sort_of_call),
]


class MessageTools(LenientModel):
    """Fields of a message for tools."""

    tool_calls: Annotated[list[AnyCall], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = Field(default=None, min_length=1, max_length=1024)


def call_json(id: str, call: ToolCall) -> Json:
    """Return a tool call as part of an answer. `id` is the client's id of the call."""
    if call.kind == "custom":
        return {"id": id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {"id": id, "type": "function", "function": function}
