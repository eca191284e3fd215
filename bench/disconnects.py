"""Clients that leave in the middle, and how long until every call made for them is closed.

Each run is the conductor's plan of three inner steps and an answer, all served by `upstream` in this process, so one clock
tells both ends: from just before the client closes its socket to when the last upstream connection of the run has closed.
A client leaves at a random moment after the first call of its stage came; half of them stream.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.client import CHAT, Client, chat
from bench.figures import Figure, counted, figure, p95
from bench.server import BenchError
from bench.upstream import Upstream

STAGES = {"planning": "conductor", "inner": "inner", "answer": "answer"}
"""A stage is entered when this model is called."""
EACH = 26
AT_ONCE = 2
STAYS_S = 0.35
"""At most so long a client stays in its stage. Each lasts longer."""
GIVE_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """One client that left.

    Args:
        stage: where it meant to.
        closed_ms: until the last call was closed; `GIVE_UP_S` where one was not.
        calls_left: those that were not.
    """

    stage: str
    closed_ms: float
    calls_left: int


def figures(left: Sequence[Leaving], runs_left: int) -> list[Figure]:
    """From every client that left with a call open, and the runs still under way when all had left."""
    every_ms = [each.closed_ms for each in left]
    by_stage = {stage: [each.closed_ms for each in left if each.stage == stage] for stage in STAGES}
    return [
        figure("disconnect_to_closed_p95_ms", every_ms, p95),
        figure("disconnect_to_closed_p50_ms", every_ms),
        *(figure(f"disconnect_{stage}_p95_ms", closed_ms, p95) for stage, closed_ms in by_stage.items()),
        counted("disconnects", len(left)),
        counted("disconnect_calls_left", sum(each.calls_left for each in left) + runs_left),
    ]


async def leave(url: str, upstream: Upstream, number: int, stage: str) -> Leaving | None:
    """Ask, wait for the stage, stay a moment, hang up; None where nothing was open by then."""
    run = f"run-leave{number}-"
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps(chat("podium-mini", question=run, stream=number % 2 == 0)).encode()
    head = f"POST {parts.path}{CHAT} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    reading = asyncio.create_task(reader.read())
    try:
        async with asyncio.timeout(30):
            await upstream.opened(run, STAGES[stage])
        await asyncio.sleep(random.uniform(0, STAYS_S))
        open_calls = upstream.open(run)
        left_s = time.monotonic()
    finally:
        reading.cancel()
        writer.close()
    if not open_calls:
        return None
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await upstream.closed(run)
    except TimeoutError:
        return Leaving(stage, 1000 * GIVE_UP_S, len(upstream.open(run)))
    last_s = max(call.closed_s or left_s for call in upstream.calls(run))
    return Leaving(stage, 1000 * (last_s - left_s), 0)


async def runs_left(client: Client) -> int:
    """Runs still under way, once they have had their time to end."""
    running = 0
    for _ in range(int(GIVE_UP_S)):
        running = int((await client.get("/readyz"))["running"])
        if running == 0:
            break
        await asyncio.sleep(1)
    return running


async def measure(client: Client, upstream: Upstream, tick: Callable[[], None]) -> list[Figure]:
    """`EACH` clients for each stage, `AT_ONCE` at a time, stages in turn."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Leaving | None:
        async with room:
            left = await leave(client.url, upstream, number, list(STAGES)[number % len(STAGES)])
        tick()
        return left

    try:
        every = await asyncio.gather(*(one(number) for number in range(EACH * len(STAGES))))
    except TimeoutError as exc:
        raise BenchError("a run did not come to its stage within 30 s") from exc
    return figures([left for left in every if left is not None], await runs_left(client))
