"""Optional request fields, message parts and response formats of OpenAI's API.

Hints are optional request fields that do not change the answer. If a server rejects a hint, the request is sent
again without it.

* Fields for the prompt cache: `prompt_cache_key`, `prompt_cache_retention`, `prompt_cache_options`. Requests with the
  same key and the same beginning are sent to the same machine, and each machine has its own cache
  (https://developers.openai.com/api/docs/guides/prompt-caching,
  https://learn.microsoft.com/azure/foundry/openai/how-to/prompt-caching).
* Thoughts that a client sends back with an assistant's turn. Some servers want them, others reject them.
* `encoding_format: base64` of embeddings. The next request has `float`, and then no format if that is rejected too.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from conductor.model.call import Call
from conductor.model.messages import CacheMark, File, Image, Text
from conductor.model.operation import PromptCache, WireOptions
from serving.schemas.openai import response_format
from serving.workers.picture_urls import split_data_url

THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details")
CACHE = ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
ENCODING = "encoding_format"
BASE64 = f"{ENCODING}: base64"
REFUSALS = (400, 415, 422, 500, 501)
"""Statuses of a response that may name a rejected field."""
UNKNOWN = re.compile(
    r"\b(unsupported|unknown|unrecogni[sz]ed|unexpected|additional|extra|invalid (argument|field|parameter))"
    r"|\b(not|n't) (be )?(supported?|permitted|allowed|accepted?|available|implemented|recogni[sz]ed|exist)",
    re.IGNORECASE,
)
"""Phrases that say that a server does not know a field, and are not about one client's value."""
MOST_KEY_CHARS = 64
"""Longest cache key that OpenAI accepts."""
TTL: Mapping[CacheMark, str] = {"30m": "30m", "12h": "12h"}
MARKS = ("explicit", *TTL)
"""Marks that are sent to OpenAI. It caches automatically, so Anthropic's marks are not sent."""
ShowMark = Callable[[CacheMark], dict[str, Any]]
"""Function that returns the field with a cache mark for a part of a message, or no field."""
Json = dict[str, Any]


def cache_json(cache: PromptCache | None, *, sends_conversation: bool) -> dict[str, object]:
    """Return the request fields for the prompt cache. Fields that are not set are None.

    Args:
        cache: the client's hints, and the conversation.
        sends_conversation: whether the id of the conversation is the key if the client sent none. Use it only for
            OpenAI and Azure: many compatible servers reject the field.
    """
    if cache is None:
        return {}
    key = cache.key or (cache.conversation if sends_conversation else "")
    if len(key) > MOST_KEY_CHARS:
        key = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    options = {name: value for name, value in (("mode", cache.mode), ("ttl", cache.ttl)) if value}
    return dict(zip(CACHE, (key or None, cache.retention or None, options or None), strict=True))


def find_refused_hints(body: Mapping[str, Any], status: int, text: str) -> frozenset[str]:
    """Return the rejected hints in `body`. Statuses 400 and 422 always include `base64`, which servers may
    not name.
    """
    if status not in REFUSALS:
        return frozenset()
    fields = {name for name in CACHE if name in body and _names(text, name)}
    if any(name in message for message in _messages(body) for name in THOUGHTS):
        fields |= {name for name in THOUGHTS if _names(text, name)}
    form = body.get(ENCODING)
    is_named = _names(text, ENCODING) or _names(text, "base64")
    if form is not None and (is_named or (form == "base64" and status in (400, 422))):
        fields.add(BASE64 if form == "base64" else ENCODING)
    return frozenset(fields)


def is_for_all(hint: str, text: str) -> bool:
    """Return whether the error rejects `hint` with every value, so that it is not sent again."""
    return hint in (BASE64, ENCODING) or UNKNOWN.search(text) is not None


def without_hints(body: Json, names: Collection[str]) -> Json:
    if not names:
        return body
    less = {name: value for name, value in body.items() if name not in names or name in THOUGHTS}
    if BASE64 in names and less.get(ENCODING) == "base64":
        less[ENCODING] = "float"
    if any(name in names for name in THOUGHTS):
        less["messages"] = [
            {name: value for name, value in message.items() if name not in THOUGHTS}
            for message in _messages(body)
        ]
    return less


def _messages(body: Mapping[str, Any]) -> list[Json]:
    return cast(list[Json], body.get("messages") or [])


def _names(text: str, field: str) -> bool:
    return re.search(rf"(?<![\w-]){field}(?![\w-])", text) is not None


def options_json(call: Call, *, sends_conversation: bool) -> dict[str, object]:
    """Return the request fields for the options of `call`. Fields that are not set are None.

    See `cache_json` for `sends_conversation`.
    """
    options = call.sampling.options
    bias = {each.token: each.bias for each in options.logit_bias or ()}
    options_fields: dict[str, object] = {
        "frequency_penalty": options.frequency_penalty,
        "presence_penalty": options.presence_penalty,
        "logit_bias": bias or None,
        "verbosity": options.verbosity,
        "top_k": call.sampling.top_k,
        "min_p": call.sampling.min_p,
        "repetition_penalty": call.sampling.repetition_penalty,
        **cache_json(options.prompt_cache, sends_conversation=sends_conversation),
    }
    return options_fields | _logprobs_json(call, options)


def _logprobs_json(call: Call, options: WireOptions) -> dict[str, object]:
    if options.top_logprobs is None:
        return {}
    if call.site.operation == "text_completion":
        return {"logprobs": options.top_logprobs}
    return {"logprobs": True, "top_logprobs": options.top_logprobs or None}


def cache_breakpoint(mark: CacheMark) -> Json:
    """Return the field with a cache mark in OpenAI's format, or no field for a mark of another provider."""
    if mark not in MARKS:
        return {}
    ttl = {"ttl": TTL[mark]} if mark in TTL else {}
    return {"prompt_cache_breakpoint": {"mode": "explicit", **ttl}}


def no_marks(mark: CacheMark) -> Json:
    """Return no field. For servers that may reject cache marks."""
    return {}


def part_json(part: Text | Image | File, show_mark: ShowMark = no_marks) -> dict[str, object]:
    mark = show_mark(part.cache)
    if isinstance(part, File):
        return {"type": "file", "file": {"filename": part.name, "file_data": part.url}, **mark}
    if isinstance(part, Image):
        if part.url.startswith("data:"):
            split_data_url(part.url)  # raises here what the server would reject later
        return {"type": "image_url", "image_url": {"url": part.url, "detail": part.detail}, **mark}
    return {"type": "text", "text": part.text, **mark}


def response_format_of(call: Call) -> dict[str, object] | None:
    if call.answer_format is not None:
        return response_format(call.answer_format)
    if call.grammar is None or call.grammar.json_schema is None:
        return None
    schema = {"name": call.site.operation, "strict": True, "schema": call.grammar.json_schema}
    return {"type": "json_schema", "json_schema": schema}
