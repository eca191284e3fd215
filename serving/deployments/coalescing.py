"""Join an answer's chunks into fewer messages. A message costs a replica the same for one token or ten."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from serving.workers.vllm import Chunk


async def coalesce(
    chunks: AsyncGenerator[Chunk], gap_s: Callable[[], float], now_s: Callable[[], float] = time.monotonic
) -> AsyncGenerator[Chunk]:
    """Yield the first chunk with text immediately, and then the chunks joined so that messages are at least
    `gap_s` apart. The last chunk is sent immediately.

    There is no timer: a message is sent with the first chunk that arrives after its time. Closing the
    generator closes `chunks`.

    Args:
        chunks: the answer's chunks.
        gap_s: called after each message for the minimum time to the next one; 0 sends every chunk on its own.
        now_s: the clock.
    """
    pending: Chunk | None = None
    due_s = 0.0
    async with aclosing(chunks):
        async for chunk in chunks:
            pending = after(pending, chunk) if pending else chunk
            if chunk.finish or now_s() >= due_s:
                message, pending = pending, None
                yield message
                due_s = now_s() + gap_s() if due_s or message.text or message.reasoning else 0.0
    if pending:
        yield pending


def after(earlier: Chunk, chunk: Chunk) -> Chunk:
    """Return both chunks as one. Token counts are running totals, so those of `chunk` are kept."""
    return chunk._replace(
        text=earlier.text + chunk.text,
        reasoning=earlier.reasoning + chunk.reasoning,
        calls=earlier.calls + chunk.calls,
        logprobs=earlier.logprobs + chunk.logprobs,
    )
