"""An end for answers that pass the limit their call has set: not every server keeps to `max_output_tokens`.

Tokens are rarely reported while an answer streams, so they are bounded from below: by pieces (no server
splits a token) and bytes together, and by bytes alone where a piece holds many tokens. What is cut has
clearly passed the limit. What is reported is for `usage.py` to judge, whichever packet it comes in.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from conductor.model.worker import Call, Delta, FinishReason

MARGIN = 1.25
MARGIN_TOKENS = 32
BYTES_PER_TOKEN = 4
"""About what a token of prose is long."""
MOST_BYTES_PER_TOKEN = 8
"""No whole answer has more on average, but for odd ones: rules drawn with dashes, blanks by the hundred."""
MARGIN_BYTES = 512


class OutputMeter:
    """Counts an answer as it streams.

    Args:
        limit: the tokens that it may be long, thoughts included.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._pieces, self._bytes = limit, 0, 0

    def has_passed(self, delta: Delta) -> bool:
        """Whether the answer, with `delta` now, is clearly longer than the limit."""
        words = delta.text + delta.reasoning
        n_bytes = len(words) if words.isascii() else len(words.encode("utf-8", "surrogatepass"))
        self._bytes += n_bytes
        self._pieces += n_bytes > 0
        n_tokens = min(self._pieces, self._bytes / BYTES_PER_TOKEN)
        return (
            n_tokens > MARGIN * self._limit + MARGIN_TOKENS
            or self._bytes > MOST_BYTES_PER_TOKEN * self._limit + MARGIN_BYTES
        )


async def within_limit(deltas: AsyncGenerator[Delta], call: Call) -> AsyncGenerator[Delta]:
    """`deltas`, ended with `length` where they pass what `call` allows; the call is closed then.

    Its usage is never reported, so it is billed at its bound.
    """
    async with aclosing(deltas):
        meter = (
            None if call.sampling.max_output_tokens is None else OutputMeter(call.sampling.max_output_tokens)
        )
        async for delta in deltas:
            yield delta
            if meter and not delta.finish and meter.has_passed(delta):
                note = (
                    f"The server passed max_output_tokens ({call.sampling.max_output_tokens}) and was cut off:"
                    " billed at the call's bound."
                )
                yield Delta(finish=FinishReason.LENGTH, notes=(note,), billed_at_bound=True)
                return
