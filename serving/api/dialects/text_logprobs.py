"""Log probabilities in the format of OpenAI's Completions."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from conductor.model.operation import TokenLogprob


def text_logprobs_json(tokens: Sequence[TokenLogprob], begins_at: int = 0) -> dict[str, Any] | None:
    """Return `logprobs` of a choice, or None if there are none.

    Args:
        tokens: tokens in order.
        begins_at: number of characters of the answer before the first of `tokens`.
    """
    if not tokens:
        return None
    offsets = accumulate((len(each.token) for each in tokens), initial=begins_at)
    return {
        "tokens": [each.token for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "top_logprobs": [{other.token: other.logprob for other in each.top} for each in tokens],
        "text_offset": [*offsets][:-1],
    }
