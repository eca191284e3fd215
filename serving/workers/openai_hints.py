"""Fields of OpenAI's wire that change no answer, and that some of its servers refuse: they are asked again without them.

* `prompt_cache_key` and its neighbours, for the prompt cache.
* Thoughts that a client sent back with an assistant's turn, which some servers want and others refuse.
* `encoding_format: base64` of embeddings. `float` is asked for in its place, and if that is refused too, nothing.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from conductor.model.operation import PromptCache

THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details")
CACHE = ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
ENCODING = "encoding_format"
BASE64 = f"{ENCODING}: base64"
REFUSALS = (400, 415, 422, 500, 501)
"""Statuses of an answer that may name a field as the reason."""
UNKNOWN = re.compile(
    r"\b(unsupported|unknown|unrecogni[sz]ed|unexpected|additional|extra|invalid (argument|field|parameter))"
    r"|\b(not|n't) (be )?(supported?|permitted|allowed|accepted?|available|implemented|recogni[sz]ed|exist)",
    re.IGNORECASE,
)
"""Words for a field that a server does not know. Others may be about the value that one client sent."""
MOST_KEY_CHARS = 64
"""Of a cache key, as OpenAI takes it."""
Json = dict[str, Any]


def cache_json(cache: PromptCache | None) -> dict[str, object]:
    """Return the fields for the prompt cache; None for those that are not sent."""
    if cache is None:
        return {}
    key = cache.key
    if len(key) > MOST_KEY_CHARS:
        key = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    options = {name: value for name, value in (("mode", cache.mode), ("ttl", cache.ttl)) if value}
    return dict(zip(CACHE, (key or None, cache.retention or None, options or None), strict=True))


def refused_hints(body: Mapping[str, Any], status: int, said: str) -> frozenset[str]:
    """Return the hints in `body` that an error answer refuses. A server that makes no vectors in base64 may not say so."""
    if status not in REFUSALS:
        return frozenset()
    named = {name for name in CACHE if name in body and _names(said, name)}
    if any(name in message for message in _messages(body) for name in THOUGHTS):
        named |= {name for name in THOUGHTS if _names(said, name)}
    form = body.get(ENCODING)
    is_named = _names(said, ENCODING) or _names(said, "base64")
    if form is not None and (is_named or (form == "base64" and status in (400, 422))):
        named.add(BASE64 if form == "base64" else ENCODING)
    return frozenset(named)


def is_for_all(hint: str, said: str) -> bool:
    """Return whether an error answer refuses `hint` with whatever value, so that no client's need be sent again."""
    return hint in (BASE64, ENCODING) or UNKNOWN.search(said) is not None


def without_hints(body: Json, refused: Collection[str]) -> Json:
    """Return `body` without the hints that its server refuses."""
    if not refused:
        return body
    less = {name: value for name, value in body.items() if name not in refused or name in THOUGHTS}
    if BASE64 in refused and less.get(ENCODING) == "base64":
        less[ENCODING] = "float"
    if any(name in refused for name in THOUGHTS):
        less["messages"] = [
            {name: value for name, value in message.items() if name not in THOUGHTS}
            for message in _messages(body)
        ]
    return less


def _messages(body: Mapping[str, Any]) -> list[Json]:
    return cast(list[Json], body.get("messages") or [])


def _names(said: str, field: str) -> bool:
    return re.search(rf"(?<![\w-]){field}(?![\w-])", said) is not None
