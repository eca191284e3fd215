"""Log probabilities as OpenAI's chat answers have them."""

from collections.abc import Sequence
from typing import Any

from conductor.model.operation import Likely, TokenLogprob


def logprobs_json(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """`logprobs` of a choice; null where none are known."""
    if not tokens:
        return None
    content = [_likely(each) | {"top_logprobs": [*map(_likely, each.top)]} for each in tokens]
    return {"content": content, "refusal": None}


def _likely(each: TokenLogprob | Likely) -> dict[str, Any]:
    raw = each.token.encode("utf-8", "surrogatepass")
    return {"token": each.token, "logprob": each.logprob, "bytes": list(raw)}
