"""An end for answers that pass the limit their call has set: not every server keeps to `max_output_tokens`.

Tokens are rarely reported while an answer streams, so they are bounded from below: by pieces (no server
splits a token) and bytes together, and by bytes alone where a piece holds many tokens. What is reported is
for `usage.py` to judge, whichever packet it comes in; here, whether it goes with the words.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from conductor.model.call import Call
from conductor.model.reply import Delta, FinishReason

MARGIN = 1.25
MARGIN_TOKENS = 32
BYTES_PER_TOKEN = 4
"""About what a token of prose is long."""
MOST_BYTES_PER_TOKEN = 8
"""No whole answer has more on average, but for odd ones: rules drawn with dashes, blanks by the hundred."""
MARGIN_BYTES = 512


LEAST_COUNT_BYTES = 64
"""No token has more, but for rules drawn with dashes: a count of tokens that leaves more to each is none."""
COUNT_MARGIN_BYTES = 1024


class OutputMeter:
    """Counts an answer as it streams, thoughts included."""

    def __init__(self) -> None:
        self._pieces = self._bytes = 0

    def add(self, delta: Delta) -> None:
        """One more piece."""
        words = delta.text + delta.reasoning + "".join(call.arguments for call in delta.tool_calls)
        n_bytes = len(words) if words.isascii() else len(words.encode("utf-8", "surrogatepass"))
        self._bytes += n_bytes
        self._pieces += delta.pieces if n_bytes else 0

    def has_passed(self, limit: int) -> bool:
        """Whether the answer is longer than `limit` tokens: pieces as long as tokens are tokens, and else it
        must be clear.
        """
        if self._pieces > limit and self._bytes >= BYTES_PER_TOKEN * self._pieces:
            return True
        return self._is_clearly_over(limit) or self._bytes > MOST_BYTES_PER_TOKEN * limit + MARGIN_BYTES

    def contradicts(self, output_tokens: int) -> bool:
        """Whether the answer cannot have been written with so few tokens."""
        if not output_tokens:
            return self._bytes > 0
        too_long = self._bytes > LEAST_COUNT_BYTES * output_tokens + COUNT_MARGIN_BYTES
        return too_long or self._is_clearly_over(output_tokens)

    def _is_clearly_over(self, tokens: int) -> bool:
        return min(self._pieces, self._bytes / BYTES_PER_TOKEN) > MARGIN * tokens + MARGIN_TOKENS


async def within_limit(deltas: AsyncGenerator[Delta], call: Call) -> AsyncGenerator[Delta]:
    """`deltas`, ended with `length` where they pass what `call` allows, and so what is held for it; the call is
    closed then. Its usage is never reported, so it is billed at its bound. So is one whose usage counts fewer
    tokens than its words can be.
    """
    limit = call.sampling.max_output_tokens
    async with aclosing(deltas):
        meter = OutputMeter()
        async for delta in deltas:
            meter.add(delta)
            if delta.finish:
                yield _checked(delta, meter, limit)
                continue
            yield delta
            counted = delta.usage.output_tokens if delta.usage else 0
            if limit is not None and (counted > limit or meter.has_passed(limit)):
                note = f"The server passed max_output_tokens ({limit}) and was cut off: billed at the call's bound."
                yield Delta(finish=FinishReason.LENGTH, notes=(note,), billed_at_bound=True)
                return


def _checked(last: Delta, meter: OutputMeter, limit: int | None) -> Delta:
    """The end of an answer: what it says of its tokens goes with its words."""
    finish, notes, is_bound = last.finish, last.notes, last.billed_at_bound
    if limit is not None and finish is FinishReason.STOP and meter.has_passed(limit):
        finish = FinishReason.LENGTH
        notes += (f"The server passed max_output_tokens ({limit}).",)
    if last.usage is not None and not is_bound and meter.contradicts(last.usage.output_tokens):
        is_bound = True
        said = last.usage.output_tokens
        notes += (f"The server's usage is not believed, {said} output tokens are too few for its words: billed at the call's bound.",)  # fmt: skip
    return replace(last, finish=finish, notes=notes, billed_at_bound=is_bound)
