"""A conversation with tools in it, for whoever cannot have them as they are: calls and results become words.

Ids, signatures and the rules that providers have for them are gone with it.
"""

from collections.abc import Iterable
from dataclasses import replace

from conductor.model.messages import Message, Part, Text, ToolCall, ToolResult
from conductor.plan.marks import enclose, mark_key

CALL, RESULT = "tool_call", "tool_result"
"""The names of the marks around a call and around a result."""


def with_tools_as_text(messages: Iterable[Message]) -> list[Message]:
    """`messages` with their calls and results of tools as marked words, and without native turns."""
    messages = list(messages)
    if not any(message.native or message.tool_calls or message.tool_results for message in messages):
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
                parts.append(Text(enclose(CALL, key, part.arguments, tool=part.name)))
            case ToolResult():
                attributes = {"tool": names.get(part.id, "?")} | ({"error": "true"} if part.is_error else {})
                parts.append(Text(enclose(RESULT, key, part.text, **attributes)))
                parts += [each for each in part.parts if not isinstance(each, Text)]
            case _:
                parts.append(part)
    role = "user" if message.role == "tool" else message.role
    return replace(message, role=role, parts=tuple(parts), native=None)
