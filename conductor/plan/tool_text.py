"""Tools as words, for whoever cannot have them as they are: calls and results in a conversation, and for the
conductor the list of what its workers may call.

Ids, signatures and the rules that providers have for them are gone with it.
"""

from collections.abc import Iterable
from dataclasses import replace

from conductor.model.messages import Message, Part, Text, ToolCall, ToolResult
from conductor.model.tools import Toolset
from conductor.plan.instructions import Layout
from conductor.plan.marks import enclose, mark_key

CALL, RESULT = "tool_call", "tool_result"
"""The names of the marks around a call and around a result."""


MOST_TOOLS, DESCRIPTION_CHARS = 64, 160
"""Of what the conductor is told: an agent's tools are described in tens of kilobytes."""


def describe_tools(tools: Toolset, layout: Layout) -> str:
    """What the conductor is told of the client's tools; empty where there are none."""
    offered = tools.offered
    if not offered:
        return ""
    lines = [f"- {tool.name}: {_first_line(tool.description)}".rstrip(": ") for tool in offered[:MOST_TOOLS]]
    more = len(offered) - MOST_TOOLS
    lines += [f"- and {more} more"] if more > 0 else []
    how = "" if layout == "lists" else ' Write "tools": false in a step that is to call none.'
    return (
        "The workers can call these tools of the user's, several times; each sees only what its own calls gave."
        f"{how}\n" + "\n".join(lines)
    )


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= DESCRIPTION_CHARS else line[: DESCRIPTION_CHARS - 1] + "…"


def with_tools_as_text(messages: Iterable[Message]) -> list[Message]:
    """`messages` with their calls and results of tools as marked words, and without native turns and thoughts."""
    messages = list(messages)
    if not any(
        message.native or message.thoughts or message.tool_calls or message.tool_results
        for message in messages
    ):
        return messages
    key = mark_key(*(message.text for message in messages), *_texts(messages))
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_as_text(message, key, names) for message in messages]


def _texts(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for call in message.tool_calls:
            yield from (call.name, call.arguments)
        for result in message.tool_results:
            yield result.text


def _as_text(message: Message, key: str, names: dict[str, str]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCall():
                parts.append(Text(enclose(CALL, key, part.arguments, tool=part.name), part.cache))
            case ToolResult():
                attributes = {"tool": names.get(part.id, "?")} | ({"error": "true"} if part.is_error else {})
                parts.append(Text(enclose(RESULT, key, part.text, **attributes), part.cache))
                parts += [each for each in part.parts if not isinstance(each, Text)]
            case _:
                parts.append(part)
    role = "user" if message.role == "tool" else message.role
    return replace(message, role=role, parts=tuple(parts), native=None, thoughts={})
