"""Prompt caches of the providers: cache marks in Anthropic's format, and which prompts the providers cache."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, dropwhile
from typing import Any, cast

from conductor.model.call import Call
from conductor.model.messages import CacheMark
from conductor.run.call_bound import input_estimate
from serving.workers.chat_chunks import fields

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


MOST_MARKS = 4
"""Maximum number of cache marks (`cache_control`) that Anthropic's API accepts in a request."""
ANTHROPIC_MARKS = ("ephemeral", "5m", "1h")
"""Marks that a client sends as `cache_control`."""
Json = dict[str, Any]


def cache_control(mark: CacheMark) -> Json:
    """Return the cache mark in Anthropic's format. Other servers of Anthropic's models accept it too."""
    if not mark:
        return {}
    ttl = {"ttl": TTL[mark]} if mark in TTL else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}


def has_marks(request: Json) -> bool:
    """Return whether a request to an API has a cache mark, or a field that makes Anthropic set one."""
    return bool(_automatic_marks(request)) or any(map(any, _blocks_with_marks(request)))


def are_for_an_hour(request: Json) -> bool:
    """Return whether a request to an API has cache marks, and all of them have a lifetime of an hour."""
    items = [*chain(*_blocks_with_marks(request)), *_automatic_marks(request)]
    return bool(items) and all(map(_lasts_an_hour, items))


def limit_marks(request: Json) -> None:
    """Make cache marks acceptable to Anthropic's API.

    * Remove marks beyond the API's limit: first the oldest ones in the messages, and then those on tools and system prompt.
    * Shorten each lifetime to that of the marks before. A field that makes Anthropic set a mark is the last one.
    """
    (heads, turns), automatic = _blocks_with_marks(request), _automatic_marks(request)
    spare = MOST_MARKS - bool(automatic)
    for block in [*turns, *heads][: max(0, len(turns) + len(heads) - spare)]:
        del block["cache_control"]
    marks = [block for block in (*heads, *turns, *automatic) if "cache_control" in block]
    for block in dropwhile(_lasts_an_hour, marks):
        if _lasts_an_hour(block):
            block.update(cache_control("5m"))


def _lasts_an_hour(block: Json) -> bool:
    return fields(block["cache_control"]).get("ttl") == "1h"


def _automatic_marks(request: Json) -> list[Json]:
    """Return the objects with a field that makes Anthropic set a mark: the request, its `extra_body`, or none."""
    return [each for each in (request, fields(request.get("extra_body"))) if "cache_control" in each]


def _blocks_with_marks(request: Json) -> tuple[list[Json], list[Json]]:
    """Return the tools and system blocks with a cache mark, and the other blocks with one, oldest first."""
    turns: list[Json] = request.get("messages") or request.get("input") or []
    systems = [turn for turn in turns if turn.get("role") == "system"]
    heads = [*request.get("tools", ()), *_list(request.get("system")), *systems]
    others = [turn for turn in turns if turn.get("role") != "system"]
    return list(_items_with_marks(heads)), list(_items_with_marks(others))


def _items_with_marks(items: Iterable[Json]) -> Iterator[Json]:
    for item in items:
        yield from _items_with_marks(_list(item.get("content")))
        yield from _items_with_marks(_list(item.get("output")))
        if "cache_control" in item:
            yield item


def _list(value: object) -> list[Json]:
    """Return the blocks in a list, or an empty list for a text."""
    each = cast(list[object], value) if isinstance(value, list) else []
    return [cast(Json, block) for block in each if isinstance(block, dict)]


def least_tokens(model: str) -> int:
    """Return the tokens of the shortest prompt that the provider of `model` caches."""
    return next(tokens for pattern, tokens in LEAST_TOKENS if re.search(pattern, model))


def is_long_enough(call: Call, model: str) -> bool:
    """Return whether the provider of `model` probably caches the call's prompt."""
    return input_estimate(call) >= least_tokens(model)


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
