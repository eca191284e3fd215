"""Lines of a system prompt that a client changes with every request and that no model needs.

Claude Code begins its prompt with `x-anthropic-billing-header: cc_version=...; cch=...;`, for Anthropic's own accounting.
With it, no two prompts share a prefix, so no prompt cache ever hits.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from conductor.model.messages import Message, Text

_LINES = re.compile(r"^[ \t]*x-anthropic-[a-z-]+-header:[^\n]*(?:\n+|\Z)", re.IGNORECASE | re.MULTILINE)


def without_volatile_lines(text: str) -> str:
    """Return `text` without them."""
    return _LINES.sub("", text) if "-header:" in text else text


def with_stable_system(messages: Iterable[Message]) -> list[Message]:
    """Return `messages` without such lines in their system messages; what holds nothing else is left out."""
    return [stable for message in messages if (stable := _stable(message)) is not None]


def _stable(message: Message) -> Message | None:
    if message.role != "system":
        return message
    parts = [
        replace(part, text=without_volatile_lines(part.text)) if isinstance(part, Text) else part
        for part in message.parts
    ]
    if parts == list(message.parts):
        return message
    kept = tuple(
        part
        for part, before in zip(parts, message.parts, strict=True)
        if part == before or not isinstance(part, Text) or part.text
    )
    return replace(message, parts=kept) if kept else None
