"""Estimate of the tokens of a call whose stream broke before its server reported them. Knows no wire and no price."""

from dataclasses import replace
from typing import Protocol

from conductor.model.usage import Usage

ESTIMATE_BYTES_PER_TOKEN = 2
"""Prose has about four bytes to a token, so an estimate is about twice the truth. That is its margin."""
ESTIMATE_SLACK_TOKENS = 16
"""Tokens that the model wrote and that were not received when the stream broke."""
ESTIMATE_SUMMARY_FACTOR = 10
"""Length of a thought over the length of its summary."""
THOUGHT_TOKENS_PER_S = 400
"""Rate of thoughts that are not shown: about twice the rate of fast models."""


class Meter(Protocol):
    """Counts that a worker keeps of a call while its answer streams."""

    @property
    def hides_thoughts(self) -> bool:
        """The model may think unseen: it has shown no thought so far."""
        ...

    @property
    def summarizes_thoughts(self) -> bool:
        """Thoughts that are shown may be summaries of longer ones."""
        ...

    @property
    def told(self) -> Usage | None:
        """The server's newest count. It may cover the prompt alone."""
        ...

    @property
    def sent_bytes(self) -> int | None:
        """Size of the prompt that was sent, or None if it is not known."""
        ...

    @property
    def streamed_bytes(self) -> int:
        """Size of the answer so far, with thoughts and unfinished calls."""
        ...


def estimate(bound: Usage, n_bytes: int, told: Usage | None = None, sent_bytes: int | None = None) -> Usage:
    """Return the estimated usage of a call whose stream broke. It is never more than `bound`.

    Args:
        bound: the most that the call can take, with one prompt token for each byte.
        n_bytes: size of the answer so far, with thoughts and the arguments of calls.
        told: the server's newest count, for example of the prompt and of its cached part.
        sent_bytes: size of the prompt. None: not known, so `bound` is used.
    """
    written = min(bound.output_tokens, n_bytes // ESTIMATE_BYTES_PER_TOKEN + ESTIMATE_SLACK_TOKENS)
    if told is None or not told.input_tokens:
        sent = bound.input_tokens if sent_bytes is None else min(sent_bytes, bound.input_tokens)
        return Usage(-(-sent // ESTIMATE_BYTES_PER_TOKEN), written)
    return replace(told, output_tokens=max(written, told.output_tokens))


def estimate_answer(
    bound: Usage, n_bytes: int, thought_bytes: int, unseen_s: float, meter: Meter | None
) -> tuple[Usage, str]:
    """Return the estimated usage of a call whose stream broke, and a sentence for the record that explains it.

    Args:
        bound: the most that the call can take.
        n_bytes: size of words and calls.
        thought_bytes: size of thoughts.
        unseen_s: time to the first token.
        meter: the worker's counts. None: the worker keeps none.
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
    """Return the estimated size of the thoughts that a model does not show in `time_s` before its first word."""
    return int(time_s * THOUGHT_TOKENS_PER_S) * ESTIMATE_BYTES_PER_TOKEN
