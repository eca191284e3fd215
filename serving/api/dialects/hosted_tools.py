"""Tools that a provider would run itself, or of a sort that nobody here knows: what becomes of them, whatever
the dialect.

Agents send them with every request. While the model is free to call no tool at all, they are left out, and
the record says so; where a call is asked for that only they could answer, the request is rejected.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from conductor.errors import BadTask, quote
from conductor.model.tools import Tool, ToolChoice, Toolset

HostedTools = Mapping[str, str]
"""The place of each in the request, and its type."""


def toolset(
    tools: Sequence[Tool], hosted: HostedTools, choice: ToolChoice, *, parallel: bool
) -> tuple[Toolset, tuple[str, ...]]:
    """The tools that can be served, and a line for each that is left out.

    Raises:
        BadTask: two have one name, the choice names none of them, or it can only be met by one that is not
            served.
    """
    names = Counter((tool.namespace, tool.name) for tool in tools)
    if double := next((name for (_, name), count in names.items() if count > 1), None):
        raise BadTask(f"tools: two are called {quote(double)}. Give each a name of its own.", param="tools")
    _check_choice(choice, {tool.name for tool in tools}, hosted)
    left_out = tuple(
        f"{place} is not served: a tool of type {quote(kind)}." for place, kind in hosted.items()
    )
    return Toolset(tuple(tools), choice, parallel), left_out


def _check_choice(choice: ToolChoice, names: set[str], hosted: HostedTools) -> None:
    if unknown := next((name for name in choice.names if name not in names), None):
        message = f"tool_choice: no tool of `tools` that is served here is called {quote(unknown)}."
        raise BadTask(message, param="tool_choice")
    if choice.mode != "required" or choice.names:
        return
    if hosted:
        place, kind = next(iter(hosted.items()))
        message = (
            f"{place}: tools of type {quote(kind)} are not served, and tool_choice asks for a call. "
            "Leave the tool out, or let the model choose."
        )
        raise BadTask(message, param=place)
    if not names:
        raise BadTask("tool_choice asks for a call, and there are no tools.", param="tool_choice")
