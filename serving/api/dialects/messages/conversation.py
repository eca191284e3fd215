"""Conversion of Anthropic's messages to a conversation."""

from collections.abc import Iterator

from conductor.errors import BadTask, quote
from conductor.model.messages import Message, Text, ToolCall, ToolResult
from serving.api.dialects.messages.blocks import (
    SERVER_TOOLS,
    DocumentBlock,
    ImageBlock,
    PassingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Unserved,
)
from serving.api.dialects.messages.schema import MessageParam, Prompt


def conversation(prompt: Prompt) -> dict[str, tuple[Message, ...]]:
    """Return a prompt's messages by their place, from `system` on. Raise BadTask for invalid content."""
    turns = {
        f"messages[{index}].content": tuple(_turns(index, message))
        for index, message in enumerate(prompt.messages)
    }
    return {"system": _system(prompt)} | turns


def notes_of_blocks(prompt: Prompt) -> tuple[str, ...]:
    """Return a note for each block of a provider's own tool, which no worker sees."""
    return tuple(
        f"messages[{index}].content[{number}] was ignored, because blocks of type {quote(block.type)} are not supported."
        for index, message in enumerate(prompt.messages)
        if not isinstance(message.content, str)
        for number, block in enumerate(message.content)
        if isinstance(block, PassingBlock) and block.type in SERVER_TOOLS
    )


def _system(prompt: Prompt) -> tuple[Message, ...]:
    if isinstance(prompt.system, str):
        return (Message.of("system", prompt.system),) if prompt.system else ()
    parts = tuple(part for block in prompt.system or () for part in block.parts)
    return (Message("system", parts),) if parts else ()


def _turns(index: int, message: MessageParam) -> Iterator[Message]:
    """Yield the messages of one turn. There are two if a user sends tool results and other content."""
    thoughts = ""
    if isinstance(message.content, str):
        parts = (Text(message.content),) if message.content else ()
    else:
        _check(index, message)
        blocks = [block for block in message.content if not isinstance(block, Unserved)]
        parts = tuple(part for block in blocks for part in block.parts)
        thoughts = "".join(block.thinking for block in blocks if isinstance(block, PassingBlock))
    results = tuple(part for part in parts if isinstance(part, ToolResult))
    if results:
        yield Message("tool", results)
    words = tuple(part for part in parts if not isinstance(part, ToolResult))
    if words or message.role == "assistant":
        led_to_calls = thoughts and any(isinstance(part, ToolCall) for part in words)
        yield Message(message.role, words, thoughts={"reasoning_content": thoughts} if led_to_calls else {})
    elif not results:
        place = f"messages[{index}].content"
        raise BadTask(f"{place} must not be empty.", param=place)


def _check(index: int, message: MessageParam) -> None:
    for number, block in enumerate(message.content):
        place = f"messages[{index}].content[{number}]"
        if isinstance(block, ToolUseBlock) and message.role != "assistant":
            raise BadTask(f"{place}: only assistant messages can have tool calls.", param=place)
        if isinstance(block, ToolResultBlock) and message.role != "user":
            raise BadTask(f"{place}: only user messages can contain tool results.", param=place)
        if isinstance(block, DocumentBlock) and message.role != "user":
            raise BadTask(f"{place}: only user messages can contain documents.", param=place)
        if isinstance(block, ImageBlock) and message.role != "user":
            raise BadTask(f"{place}: only user messages can contain images.", param=place)
