"""About what a call took whose stream broke before its server said so. Knows no wire and no price."""

from dataclasses import replace
from typing import Protocol

from conductor.model.usage import Usage

ESTIMATE_BYTES_PER_TOKEN = 2
"""Of an estimate. Prose has about four bytes to a token, so an estimate is about twice the truth: that is its margin."""
ESTIMATE_SLACK_TOKENS = 16
"""Written by a model and not received when its stream broke, in an estimate."""
ESTIMATE_SUMMARY_FACTOR = 10
"""How much longer than its summary a thought is taken to be, in an estimate."""
THOUGHT_TOKENS_PER_S = 400
"""Of thoughts that are not shown, in an estimate: about twice what fast models write."""


class Meter(Protocol):
    """What a worker counts of a call while its answer streams."""

    @property
    def hides_thoughts(self) -> bool:
        """Whether the model may think unseen: no thought has been shown so far."""
        ...

    @property
    def summarizes_thoughts(self) -> bool:
        """Whether thoughts that are shown may be summaries of longer ones."""
        ...

    @property
    def told(self) -> Usage | None:
        """The newest count of the server's: of the prompt alone, if it does not count the answer yet."""
        ...

    @property
    def sent_bytes(self) -> int | None:
        """About how many bytes of prompt were sent. None: not known."""
        ...

    @property
    def streamed_bytes(self) -> int:
        """How much of the answer has streamed, thoughts and unfinished calls included."""
        ...


def estimate(bound: Usage, n_bytes: int, told: Usage | None = None, sent_bytes: int | None = None) -> Usage:
    """Return about what a call took whose stream broke before its server said so; never more than `bound`.

    Args:
        bound: the most that it can take; its prompt is counted as one token a byte.
        n_bytes: of the answer that streamed, thoughts and the arguments of calls included.
        told: what its server had counted by then, such as the prompt and what of it was written to a cache.
        sent_bytes: of the prompt; None: not known, so `bound` stands for it.
    """
    written = min(bound.output_tokens, n_bytes // ESTIMATE_BYTES_PER_TOKEN + ESTIMATE_SLACK_TOKENS)
    if told is None or not told.input_tokens:
        sent = bound.input_tokens if sent_bytes is None else min(sent_bytes, bound.input_tokens)
        return Usage(-(-sent // ESTIMATE_BYTES_PER_TOKEN), written)
    return replace(told, output_tokens=max(written, told.output_tokens))


def estimate_answer(
    bound: Usage, n_bytes: int, thought_bytes: int, unseen_s: float, meter: Meter | None
) -> tuple[Usage, str]:
    """Return about what a call took of whose answer so much streamed, and how that was estimated, for the record.

    Args:
        bound: the most that it can take.
        n_bytes: of words and calls.
        thought_bytes: of thoughts.
        unseen_s: the time to the first token.
        meter: what the worker counted; None: nothing.
    """
    how = f"Estimated from what was sent and what streamed, one token for {ESTIMATE_BYTES_PER_TOKEN} bytes (about twice what prose takes) and {ESTIMATE_SLACK_TOKENS} more."
    if meter is None:
        return estimate(bound, n_bytes + thought_bytes), how
    if meter.summarizes_thoughts:
        thought_bytes *= ESTIMATE_SUMMARY_FACTOR
    if meter.hides_thoughts and not thought_bytes:
        thought_bytes = unseen_bytes(unseen_s)
        how += f" Its model may have thought unseen for {unseen_s:.1f} s: {THOUGHT_TOKENS_PER_S} tokens a second."
    n_bytes = max(n_bytes + thought_bytes, meter.streamed_bytes)
    return estimate(bound, n_bytes, meter.told, meter.sent_bytes), how


def unseen_bytes(time_s: float) -> int:
    """Return about the most bytes that a model thinks unseen in `time_s` before its first word."""
    return int(time_s * THOUGHT_TOKENS_PER_S) * ESTIMATE_BYTES_PER_TOKEN
