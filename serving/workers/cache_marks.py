"""Marks for the prompt cache (`CacheMark`) in the words of the wires that have them."""

from collections.abc import Callable, Mapping
from typing import Any

from conductor.model.messages import CacheMark

ShowMark = Callable[[CacheMark], dict[str, Any]]
"""Gives the field of a part that ends a cached prefix; nothing if it ends none."""
ANTHROPIC_TTL: Mapping[CacheMark, str] = {"5m": "5m", "1h": "1h", "12h": "1h"}
"""Of a mark; others have none, which is five minutes."""
OPENAI_TTL: Mapping[CacheMark, str] = {"30m": "30m", "12h": "12h"}
OPENAI_MARKS = ("explicit", *OPENAI_TTL)
"""Anthropic's are not sent there: OpenAI caches by itself, and takes no more than four of its own."""


def cache_control(mark: CacheMark) -> dict[str, Any]:
    """Anthropic's, which other servers of its models take too."""
    if not mark:
        return {}
    ttl = {"ttl": ANTHROPIC_TTL[mark]} if mark in ANTHROPIC_TTL else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}


def cache_breakpoint(mark: CacheMark) -> dict[str, Any]:
    """OpenAI's."""
    if mark not in OPENAI_MARKS:
        return {}
    ttl = {"ttl": OPENAI_TTL[mark]} if mark in OPENAI_TTL else {}
    return {"prompt_cache_breakpoint": {"mode": "explicit", **ttl}}


def no_marks(mark: CacheMark) -> dict[str, Any]:
    """For a server that may refuse them."""
    return {}
