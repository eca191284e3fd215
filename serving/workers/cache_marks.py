"""Prompt caches of the providers: cache marks in Anthropic's format, and which prompts the providers cache."""

import re
from collections.abc import Mapping
from typing import Any

from conductor.model.call import Call
from conductor.model.characters import BYTES_PER_TOKEN
from conductor.model.messages import CacheMark
from conductor.run.call_bound import sent_bytes

TTL: Mapping[CacheMark, str] = {"5m": "5m", "1h": "1h", "12h": "1h"}
"""Lifetime of the cached prefix for each mark. Other marks last five minutes."""
LEAST_TOKENS = (
    (r"haiku-4-5|opus-4-[56]", 4096),
    (r"opus-4-7|mythos-preview|claude-3-(5-)?haiku", 2048),
    (r"(opus|fable|mythos)-5|(sonnet|haiku)-5-5", 512),
    ("", 1024),
)
"""Shortest prompt that a provider caches, by a pattern of the model's name. Other Claude models and OpenAI's have the
last one. Anthropic ignores marks in shorter prompts.

Source (October 2026): https://platform.claude.com/docs/en/build-with-claude/prompt-caching#cache-limitations and
https://developers.openai.com/api/docs/guides/prompt-caching. Bedrock has other minimums for some models.
"""


def cache_control(mark: CacheMark) -> dict[str, Any]:
    """Return the cache mark in Anthropic's format. Other servers of Anthropic's models accept it too."""
    if not mark:
        return {}
    ttl = {"ttl": TTL[mark]} if mark in TTL else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}


def least_tokens(model: str) -> int:
    """Return the tokens of the shortest prompt that the provider of `model` caches."""
    return next(tokens for pattern, tokens in LEAST_TOKENS if re.search(pattern, model))


def is_long_enough(call: Call, model: str) -> bool:
    """Return whether the provider of `model` probably caches the call's prompt."""
    return sent_bytes(call) // BYTES_PER_TOKEN >= least_tokens(model)


def conversation_in_cache(call: Call, model: str = "") -> str:
    """Return the id of the conversation whose cache the call should reach, or "" if it may go anywhere.

    Requests that only begin alike have the same id. They may go anywhere, because all of them at one deployment would
    overload it. A call should reach the cache if the client has named the conversation, if the prompt has an earlier
    answer, or if it is long enough to be cached.
    """
    cache = call.sampling.options.prompt_cache
    if cache is None or not cache.conversation:
        return ""
    has_answer = any(message.role == "assistant" for message in call.messages)
    return cache.conversation if cache.is_named or has_answer or is_long_enough(call, model) else ""
