"""Fewer messages for the same words: what leaves a replica costs the same for one token as for ten."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from serving.workers.vllm import Chunk


async def coalesce(
    chunks: AsyncGenerator[Chunk], gap_s: Callable[[], float], now_s: Callable[[], float] = time.monotonic
) -> AsyncGenerator[Chunk]:
    """The first words at once; then what has come since the last message, `gap_s` after it, and at once with
    the last chunk.

    No clock wakes it: a message leaves with the first chunk after its time. Closing it closes `chunks`.

    Args:
        chunks: an answer, a piece at a time.
        gap_s: asked after each message for the least time to the next; 0 sends every chunk by itself.
        now_s: the clock.
    """
    held: Chunk | None = None
    due_s = 0.0
    async with aclosing(chunks):
        async for chunk in chunks:
            held = after(held, chunk) if held else chunk
            if chunk.finish or now_s() >= due_s:
                message, held = held, None
                yield message
                due_s = now_s() + gap_s() if due_s or message.text or message.reasoning else 0.0
    if held:
        yield held


def after(held: Chunk, chunk: Chunk) -> Chunk:
    """Both as one; counts are running totals, so the later ones hold."""
    return chunk._replace(
        text=held.text + chunk.text,
        reasoning=held.reasoning + chunk.reasoning,
        calls=held.calls + chunk.calls,
        logprobs=held.logprobs + chunk.logprobs,
    )
