"""What OpenAI's wire takes beside the usual, and the log probabilities in its chunks. They change no bill, so
what is no number is passed over.
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
    """The fields of the body for the options of `call`; None for those that it does not ask for."""
    options = call.sampling.options
    bias = {each.token: each.bias for each in options.logit_bias or ()}
    given: dict[str, object] = {
        "frequency_penalty": options.frequency_penalty,
        "presence_penalty": options.presence_penalty,
        "logit_bias": bias or None,
        "verbosity": options.verbosity,
        "top_k": call.sampling.top_k,
        "min_p": call.sampling.min_p,
        "repetition_penalty": call.sampling.repetition_penalty,
        **cache_json(options.prompt_cache),
    }
    return given | _logprobs_json(call, options)


def _logprobs_json(call: Call, options: WireOptions) -> dict[str, object]:
    if options.top_logprobs is None:
        return {}
    if call.site.operation == "text_completion":
        return {"logprobs": options.top_logprobs}
    return {"logprobs": True, "top_logprobs": options.top_logprobs or None}


def logprobs_of(chunk: ChatChunk) -> tuple[TokenLogprob, ...]:
    """Those of the chunk's words, as a chat or a completion of text has them."""
    said = fields(chunk.choice.logprobs if chunk.choice else None)
    if isinstance(content := said.get("content"), list):
        return tuple(each for each in map(_token, cast(list[Any], content)) if each is not None)
    tokens, values, top = (_list(said.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    found = zip_longest(tokens, values[: len(tokens)], top[: len(tokens)])
    return tuple(
        TokenLogprob(whole(str(token)), _number(value), _likely(fields(more).items()))
        for token, value, more in found
    )


def _token(said: Any) -> TokenLogprob | None:
    each = fields(said)
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
    """OpenAI's -9999 stands for what is too unlikely to say."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else -9999.0
