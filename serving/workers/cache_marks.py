"""Prompt cache marks (`CacheMark`) in the providers' formats."""

from collections.abc import Callable, Mapping
from typing import Any

from conductor.model.messages import CacheMark

ShowMark = Callable[[CacheMark], dict[str, Any]]
"""Function that returns the field with a cache mark for a part of a message, or no field."""
ANTHROPIC_TTL: Mapping[CacheMark, str] = {"5m": "5m", "1h": "1h", "12h": "1h"}
"""Lifetime of the cached prefix for each mark. Other marks last five minutes."""
OPENAI_TTL: Mapping[CacheMark, str] = {"30m": "30m", "12h": "12h"}
OPENAI_MARKS = ("explicit", *OPENAI_TTL)
"""Marks that are sent to OpenAI. It caches automatically, so Anthropic's marks are not sent."""


def cache_control(mark: CacheMark) -> dict[str, Any]:
    """Return the cache mark in Anthropic's format. Other servers of Anthropic's models accept it too."""
    if not mark:
        return {}
    ttl = {"ttl": ANTHROPIC_TTL[mark]} if mark in ANTHROPIC_TTL else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}


def cache_breakpoint(mark: CacheMark) -> dict[str, Any]:
    if mark not in OPENAI_MARKS:
        return {}
    ttl = {"ttl": OPENAI_TTL[mark]} if mark in OPENAI_TTL else {}
    return {"prompt_cache_breakpoint": {"mode": "explicit", **ttl}}


def no_marks(mark: CacheMark) -> dict[str, Any]:
    """Return no field. For servers that may reject cache marks."""
    return {}
