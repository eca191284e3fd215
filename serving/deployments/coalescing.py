"""Join chunks of an answer into messages. One costs a replica as much for one token as for ten."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from serving.workers.vllm import Chunk


async def coalesce(
    chunks: AsyncGenerator[Chunk], gap_s: Callable[[], float], now_s: Callable[[], float] = time.monotonic
) -> AsyncGenerator[Chunk]:
    """Join chunks so that at least `gap_s()` seconds, asked for after each message, pass between two. For 0,
    none are joined.

    The first chunk with text and the last chunk are yielded immediately. There is no timer: a message is
    yielded when the first chunk arrives after the gap. Closing the generator closes `chunks`.
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
    """Join two consecutive chunks. Token counts are running totals, so those of the later `chunk` are used."""
    return chunk._replace(
        text=earlier.text + chunk.text,
        reasoning=earlier.reasoning + chunk.reasoning,
        calls=earlier.calls + chunk.calls,
        logprobs=earlier.logprobs + chunk.logprobs,
    )
