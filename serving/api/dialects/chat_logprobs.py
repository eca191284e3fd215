"""Log probabilities as OpenAI's chat answers and responses have them."""

from collections.abc import Sequence
from typing import Any

from conductor.model.operation import Likely, TokenLogprob


def logprobs_json(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """`logprobs` of a choice; null where none are known."""
    if not tokens:
        return None
    return {"content": content_json(tokens), "refusal": None}


def content_json(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """A line for each token."""
    return [_likely(each) | {"top_logprobs": [*map(_likely, each.top)]} for each in tokens]


def _likely(each: TokenLogprob | Likely) -> dict[str, Any]:
    raw = each.token.encode("utf-8", "surrogatepass")
    return {"token": each.token, "logprob": each.logprob, "bytes": list(raw)}
