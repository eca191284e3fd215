"""Usage, cost and log probabilities in chunks of OpenAI-compatible servers.

Log probabilities do not affect the bill, so invalid ones are ignored.
"""

from itertools import zip_longest
from math import isfinite
from typing import Any, cast

from conductor.model.characters import whole
from conductor.model.operation import Likely, TokenLogprob
from conductor.model.usage import Usage
from serving.workers.chat_chunks import ChatChunk, fields
from serving.workers.usage import UsageCheck, integer


def cost_of(chunk: ChatChunk) -> object:
    """Return the cost so far that the server reports, or None if it reports none.

    OpenRouter reports it as `usage.cost`, and another Podium server as `podium.cost_usd`. If OpenRouter uses
    the account's own key of a provider (`is_byok`), its cost is only its fee, so the result is None.
    """
    usage = fields(chunk.usage)
    if usage.get("is_byok"):
        return None
    cost = usage.get("cost")
    return fields(chunk.podium).get("cost_usd") if cost is None else cost


def usage_of(reported: object, check: UsageCheck) -> Usage | None:
    """Return the usage in `reported`, or None if there is none or it is implausible."""
    if reported is None:
        return None
    usage = fields(reported)
    of_prompt, of_answer = (
        fields(usage.get("prompt_tokens_details")),
        fields(usage.get("completion_tokens_details")),
    )
    n_input = check.count("prompt_tokens", usage.get("prompt_tokens"))
    n_output = check.count("completion_tokens", usage.get("completion_tokens"))
    n_reasoning = check.count("reasoning_tokens", of_answer.get("reasoning_tokens"))
    if (
        n_input
        and n_reasoning
        and integer(usage.get("total_tokens")) == n_input + (n_output or 0) + n_reasoning
    ):
        n_output = (n_output or 0) + n_reasoning  # xAI's completion_tokens do not include thoughts
    return check.usage(
        n_input,
        n_output,
        check.count("cached_tokens", of_prompt.get("cached_tokens")),
        n_reasoning,
        check.count("cache_write_tokens", of_prompt.get("cache_write_tokens")),
    )


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
