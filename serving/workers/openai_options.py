"""Optional request fields of OpenAI's API, and log probabilities in its chunks.

Log probabilities do not affect the bill, so invalid ones are ignored.
"""

from itertools import zip_longest
from math import isfinite
from typing import Any, cast

from conductor.model.call import Call
from conductor.model.characters import whole
from conductor.model.operation import Likely, TokenLogprob, WireOptions
from serving.workers.chat_chunks import ChatChunk, fields
from serving.workers.openai_hints import cache_json


def options_json(call: Call) -> dict[str, object]:
    """Return the request fields for the options of `call`. Fields that are not set are None."""
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
        **cache_json(options.prompt_cache),
    }
    return options_fields | _logprobs_json(call, options)


def _logprobs_json(call: Call, options: WireOptions) -> dict[str, object]:
    if options.top_logprobs is None:
        return {}
    if call.site.operation == "text_completion":
        return {"logprobs": options.top_logprobs}
    return {"logprobs": True, "top_logprobs": options.top_logprobs or None}


def logprobs_of(chunk: ChatChunk) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of the chunk's tokens. Both formats are read: of chats and of text
    completions.
    """
    logprobs = fields(chunk.choice.logprobs if chunk.choice else None)
    if isinstance(content := logprobs.get("content"), list):
        return tuple(each for each in map(_token, cast(list[Any], content)) if each is not None)
    tokens, values, top = (_list(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    rows = zip_longest(tokens, values[: len(tokens)], top[: len(tokens)])
    return tuple(
        TokenLogprob(whole(str(token)), _number(value), _likely(fields(more).items()))
        for token, value, more in rows
    )


def _token(value: Any) -> TokenLogprob | None:
    each = fields(value)
    if not isinstance(token := each.get("token"), str):
        return None
    others = (fields(other) for other in _list(each.get("top_logprobs")))
    top = _likely((other.get("token"), other.get("logprob")) for other in others)
    return TokenLogprob(whole(token), _number(each.get("logprob")), top)


def _likely(pairs: Any) -> tuple[Likely, ...]:
    return tuple(Likely(whole(token), _number(value)) for token, value in pairs if isinstance(token, str))


def _list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _number(value: object) -> float:
    """Return `value` as a number. Anything else becomes -9999, which OpenAI sends for tokens that are too
    unlikely.
    """
    return float(value) if isinstance(value, int | float) and isfinite(value) else -9999.0
