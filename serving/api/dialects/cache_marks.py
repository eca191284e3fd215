"""Fields of clients for a provider's prompt cache: Anthropic's `cache_control` and OpenAI's `prompt_cache_breakpoint` on parts of
a prompt, and OpenAI's fields of a request.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from conductor.model.messages import CacheMark, Message
from conductor.model.operation import PromptCache


class _Ignoring(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class CacheControl(_Ignoring):
    """Anthropic's mark; other clients send it too."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CacheBreakpoint(_Ignoring):
    """OpenAI's mark."""

    mode: Literal["explicit"] = "explicit"
    ttl: Literal["30m", "12h"] | None = None


class MarkFields(_Ignoring):
    """The fields of a part that ends a cached prefix."""

    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @property
    def mark(self) -> CacheMark:
        """The mark, or "" if there is none."""
        if self.cache_control is not None:
            return self.cache_control.ttl or "ephemeral"
        if self.prompt_cache_breakpoint is not None:
            return self.prompt_cache_breakpoint.ttl or "explicit"
        return ""


class CacheOptions(_Ignoring):
    """OpenAI's `prompt_cache_options`."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class CacheFields(_Ignoring):
    """OpenAI's fields of a request."""

    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None

    @property
    def prompt_cache(self) -> PromptCache | None:
        """The options, or None if no field is set."""
        options = self.prompt_cache_options or CacheOptions()
        retention = (self.prompt_cache_retention or "").replace("-", "_")
        options_sent = PromptCache(
            self.prompt_cache_key or "", retention, options.mode or "", options.ttl or ""
        )
        return None if options_sent == PromptCache() else options_sent


def mark_last(messages: Sequence[Message], mark: CacheMark) -> tuple[Message, ...]:
    """Return `messages` with `mark` on the last part of the last one, if it has none yet."""
    if not mark or not messages or not messages[-1].parts or messages[-1].parts[-1].cache:
        return tuple(messages)
    *parts, last = messages[-1].parts
    changed: Any = replace(last, cache=mark)
    return (*messages[:-1], replace(messages[-1], parts=(*parts, changed)))
