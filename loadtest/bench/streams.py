"""A thousand concurrent streams on one router replica: whether each is complete, and the memory per stream.

The scripted worker waits 20 s before its first word, so all streams are open by then. `running` of `/readyz`
is the number of active runs. Memory per stream is the growth of the replica's resident memory from before the
streams to its peak, divided by the number of streams.
"""

import asyncio
from collections.abc import Callable

from loadtest.bench.figures import Figure, reading
from loadtest.rig.client import REQUEST_ERRORS, BenchClient, chat
from loadtest.rig.ray_server import BenchServer

STREAMS = 1000
TEXT = "one two three four five"
"""Answer of the worker `patient` in settings.yaml."""
GAP_S = 0.004
"""Seconds between the starts of two streams. All streams start within seconds, but not at the same moment."""


def figures(texts: list[str | None], peak: int, before_bytes: int, peak_bytes: int) -> list[Figure]:
    """Compute the figures. The text of an interrupted stream is None; bytes are the replica's resident
    memory.
    """
    return [
        reading("open_streams_lost", sum(text != TEXT for text in texts)),
        reading("open_streams_peak", peak),
        reading("router_mb_per_open_stream", (peak_bytes - before_bytes) / max(peak, 1) / 2**20),
    ]


async def measure(
    client: BenchClient, server: BenchServer, tick: Callable[[], None], say: Callable[[str], None]
) -> list[Figure]:
    """Measure `STREAMS` streams. Takes about 45 s."""
    router = server.router()
    before_bytes = router.memory_info().rss
    peak = peak_bytes = 0

    async def ask(number: int) -> str | None:
        await asyncio.sleep(number * GAP_S)
        try:
            result, _ = await client.stream(chat("patient"))
        except REQUEST_ERRORS as exc:
            say(f"Stream {number} is incomplete: {type(exc).__name__}: {exc}")
            return None
        finally:
            tick()
        return result.text

    async def watch() -> None:
        nonlocal peak, peak_bytes
        while True:
            peak = max(peak, (await client.get("/readyz"))["running"])
            peak_bytes = max(peak_bytes, router.memory_info().rss)
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    try:
        texts = await asyncio.gather(*(ask(number) for number in range(STREAMS)))
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    if not watching.cancelled():
        watching.result()
    return figures(texts, peak, before_bytes, peak_bytes)
