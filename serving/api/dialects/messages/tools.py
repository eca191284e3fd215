"""Anthropic's tools and `tool_choice`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from conductor.model.messages import AUTO, Tool, ToolChoice, Toolset
from serving.api.dialects.chat.tools import MOST_TOOLS, ToolName, toolset
from serving.api.dialects.messages.blocks import Json, Marked
from serving.api.dialects.read_body import LenientModel, NullableText

NOT_HOSTED = ("custom", "function")
"""Types of tools that the client runs. `function` is of Chat Completions, and rejected by its fields."""


class ClientTool(Marked):
    """Tool that the client runs. The model sees a tool with `defer_loading` from the start, like any
    other.
    """

    type: Literal["custom"] | None = None
    name: ToolName
    description: NullableText = ""
    input_schema: Json
    strict: bool | None = None

    def to_tool(self) -> Tool:
        """Return the tool in the form that all dialects share."""
        return Tool(self.name, self.description, self.input_schema, bool(self.strict), cache=self.mark)


class VersionedTool(LenientModel):
    """Tool whose type has a version. Anthropic runs such tools itself, or has trained its models to call
    them.
    """

    type: str = Field(max_length=128)


def _sort(value: Any) -> str:
    kind = cast(Json, value).get("type") if isinstance(value, dict) else None
    return "client" if kind in (None, *NOT_HOSTED) else "hosted"


AnyTool = Annotated[
    Annotated[ClientTool, Tag("client")] | Annotated[VersionedTool, Tag("hosted")], Discriminator(_sort)
]


class ToolChoiceBody(LenientModel):
    """Tools that the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> "ToolChoiceBody":
        if self.type == "tool" and not self.name:
            raise ValueError("must have a `name` if its type is `tool`")
        return self

    def to_choice(self) -> ToolChoice:
        """Return the choice in the form that all dialects share."""
        match self.type:
            case "auto":
                return AUTO
            case "none":
                return ToolChoice("none")
            case "any":
                return ToolChoice("required")
            case "tool":
                return ToolChoice("required", (self.name or "",))


class ToolFields(LenientModel):
    """Fields of a request for tools."""

    tools: Annotated[list[AnyTool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoiceBody | None = None
    mcp_servers: Annotated[list[Any], Field(max_length=MOST_TOOLS)] | None = None

    @property
    def toolset(self) -> tuple[Toolset, tuple[str, ...]]:
        """The supported tools, and a note for each omitted tool. Raises `BadTask` for a contradictory
        `tool_choice`.
        """
        tools: Sequence[AnyTool] = self.tools or ()
        own = [tool.to_tool() for tool in tools if isinstance(tool, ClientTool)]
        hosted = {
            f"tools[{index}]": tool.type
            for index, tool in enumerate(tools)
            if isinstance(tool, VersionedTool)
        }
        hosted |= {f"mcp_servers[{index}]": "mcp" for index in range(len(self.mcp_servers or ()))}
        choice = self.tool_choice
        is_single = choice is not None and bool(choice.disable_parallel_tool_use)
        return toolset(own, hosted, choice.to_choice() if choice else AUTO, parallel=not is_single)
