"""A turn of OpenAI's chat as a `Message`."""

from dataclasses import replace
from typing import Any

from conductor.errors import BadTask
from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from serving.api.dialects.cache_marks import mark_last
from serving.api.dialects.chat_schema import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImagePart,
    RefusalPart,
    TextPart,
    UnservedPart,
)

SHOWS_PICTURES = ("user", "tool")
"""The roles of messages that may hold some."""


def to_message(index: int, message: ChatMessage) -> Message:
    """`message`, the one at `index`.

    Raises:
        BadTask: it is empty, or has parts or calls that its role cannot have.
    """
    role = "system" if message.role == "developer" else message.role
    calls = _calls(index, message)
    if role == "tool":
        return Message(role, (_result(index, message),))
    thoughts = _thoughts(message) if role == "assistant" else {}
    if message.content is None or message.content == []:
        if role == "assistant":
            said = (Text(message.refusal),) if message.refusal else ()
            return mark_last([Message(role, (*said, *calls), thoughts=thoughts)], message.mark)[0]
        raise BadTask(f"messages[{index}].content is empty.", param=f"messages[{index}].content")
    return mark_last([Message(role, (*_parts(index, message), *calls), thoughts=thoughts)], message.mark)[0]


def _thoughts(message: ChatMessage) -> dict[str, Any]:
    """Those that were sent, by the names under which they came."""
    kinds = {"reasoning_content": str, "reasoning": str, "reasoning_details": list}
    named = {name: getattr(message, name) for name in kinds}
    return {name: value for name, value in named.items() if value and isinstance(value, kinds[name])}


def _calls(index: int, message: ChatMessage) -> tuple[ToolCall, ...]:
    if message.tool_calls and message.role != "assistant":
        place = f"messages[{index}].tool_calls"
        raise BadTask(f"{place}: only messages of the assistant can call tools.", param=place)
    return tuple(call.to_call() for call in message.tool_calls or ())


def _result(index: int, message: ChatMessage) -> ToolResult:
    if message.tool_call_id is None:
        place = f"messages[{index}].tool_call_id"
        raise BadTask(f"{place} is missing: the id of the call that this is the result of.", param=place)
    parts = tuple(part for part in _parts(index, message) if isinstance(part, Text | Image | File))
    return ToolResult(message.tool_call_id, parts, cache=message.mark)


def _parts(index: int, message: ChatMessage) -> tuple[Part, ...]:
    if message.content is None or isinstance(message.content, str):
        is_left_out = not message.content and (message.role == "tool" or message.tool_calls)
        return () if is_left_out else (Text(message.content or ""),)
    for number, part in enumerate(message.content):
        place = f"messages[{index}].content[{number}]"
        if isinstance(part, ImagePart) and message.role not in SHOWS_PICTURES:
            raise BadTask(f"{place}: only messages of the user and of tools can show pictures.", param=place)
        if isinstance(part, FilePart) and message.role not in SHOWS_PICTURES:
            raise BadTask(f"{place}: only messages of the user and of tools can hold files.", param=place)
        if isinstance(part, RefusalPart) and message.role != "assistant":
            raise BadTask(f"{place}: only messages of the assistant can be refusals.", param=place)
    return tuple(
        _part(part, f"messages[{index}].content[{number}]") for number, part in enumerate(message.content)
    )


def _part(part: ContentPart, place: str) -> Part:
    match part:
        case ImagePart():
            return Image(part.image_url.url, part.image_url.detail, part.mark)
        case FilePart():
            try:
                return replace(part.file.to_file(), cache=part.mark)
            except ValueError as exc:
                raise BadTask(f"{place}.file.file_data: {exc}.", param=f"{place}.file.file_data") from exc
        case TextPart() | RefusalPart():
            return Text(part.text, part.mark)
        case UnservedPart():
            raise AssertionError("one is never made")
