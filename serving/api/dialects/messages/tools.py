"""Anthropic's tools and `tool_choice`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from conductor.model.messages import AUTO, Tool, ToolChoice, Toolset
from serving.api.dialects.chat.tools import MOST_TOOLS, ToolName, Words, toolset
from serving.api.dialects.messages.blocks import Ignoring, Json, Marked

NOT_HOSTED = ("custom", "function")
"""Types that are no server's tool: the second is Chat Completions', and is refused by what is wrong with it."""


class ClientTool(Marked):
    """A tool that the client runs. One with `defer_loading` is offered at once."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: Words = ""
    input_schema: Json
    strict: bool | None = None

    def to_tool(self) -> Tool:
        """It, as every dialect says it."""
        return Tool(self.name, self.description, self.input_schema, bool(self.strict), cache=self.mark)


class HostedTool(Ignoring):
    """A tool of a type that Anthropic has given a version: it would run it, or its models know how to call it."""

    type: str = Field(max_length=128)


def _sort(given: Any) -> str:
    kind = cast(Json, given).get("type") if isinstance(given, dict) else None
    return "client" if kind in (None, *NOT_HOSTED) else "hosted"


AnyTool = Annotated[
    Annotated[ClientTool, Tag("client")] | Annotated[HostedTool, Tag("hosted")], Discriminator(_sort)
]


class Choice(Ignoring):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> "Choice":
        if self.type == "tool" and not self.name:
            raise ValueError("a choice of the type `tool` needs the `name` of one")
        return self

    def to_choice(self) -> ToolChoice:
        """It, as every dialect says it."""
        match self.type:
            case "auto":
                return AUTO
            case "none":
                return ToolChoice("none")
            case "any":
                return ToolChoice("required")
            case "tool":
                return ToolChoice("required", (self.name or "",))


class ToolFields(Ignoring):
    """The fields of a request that are about tools."""

    tools: Annotated[list[AnyTool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    mcp_servers: Annotated[list[Any], Field(max_length=MOST_TOOLS)] | None = None

    @property
    def toolset(self) -> tuple[Toolset, tuple[str, ...]]:
        """The tools, and a line for each that is left out; raises BadTask where they and the choice disagree."""
        tools: Sequence[AnyTool] = self.tools or ()
        own = [tool.to_tool() for tool in tools if isinstance(tool, ClientTool)]
        hosted = {
            f"tools[{index}]": tool.type for index, tool in enumerate(tools) if isinstance(tool, HostedTool)
        }
        hosted |= {f"mcp_servers[{index}]": "mcp" for index in range(len(self.mcp_servers or ()))}
        choice = self.tool_choice
        is_single = choice is not None and bool(choice.disable_parallel_tool_use)
        return toolset(own, hosted, choice.to_choice() if choice else AUTO, parallel=not is_single)
