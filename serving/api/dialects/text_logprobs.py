"""Log probabilities as OpenAI's completions of text have them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from conductor.model.operation import TokenLogprob


def text_logprobs_json(tokens: Sequence[TokenLogprob], begins_at: int = 0) -> dict[str, Any] | None:
    """`logprobs` of a choice; null where none are known.

    Args:
        tokens: in their order.
        begins_at: how many characters of the answer came before them.
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
