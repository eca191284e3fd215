"""Closed loops: clients that send the next request when they have the answer to the last one."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from loadtest.rig.routers import RouterAnswer, RouterProcess, ask

PAUSE_S = 0.05


@asynccontextmanager
async def keep_asking(ask: Callable[[int], Awaitable[object]], clients: int) -> AsyncGenerator[None]:
    """Clients that call `ask` with their number without a pause, and finish at the end of the block."""
    is_over = False

    async def repeat(number: int) -> None:
        while not is_over:
            await ask(number)

    tasks = [asyncio.create_task(repeat(number)) for number in range(clients)]
    try:
        yield
    finally:
        is_over = True
        await asyncio.gather(*tasks)


async def rate_per_s(ask: Callable[[], Awaitable[object]], clients: int, seconds: float) -> float:
    """Answers per second to so many clients that send without a pause."""
    began_s = time.monotonic()
    done = 0

    async def count(_: int) -> None:
        nonlocal done
        await ask()
        done += 1

    async with keep_asking(count, clients):
        await asyncio.sleep(seconds)
    return done / (time.monotonic() - began_s)


async def times_ms(ask: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """The duration of each of `times` requests, one at a time."""
    durations_ms: list[float] = []
    for _ in range(times):
        began_s = time.monotonic()
        await ask()
        durations_ms.append(1000 * (time.monotonic() - began_s))
    return durations_ms


@dataclass
class Seen:
    """What clients saw.

    Args:
        whole: the runs that they were given a whole answer of.
        others: how often they got anything else, by status and code.
        longest_s: the longest time in which nobody was given a whole answer.
        slowest_s: the slowest whole answer.
    """

    whole: list[str] = field(default_factory=list[str])
    others: Counter[str] = field(default_factory=Counter[str])
    longest_s: float = 0.0
    slowest_s: float = 0.0
    _newest_s: float = field(default_factory=time.monotonic)

    def add(self, answer: RouterAnswer, took_s: float) -> None:
        """One more."""
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._newest_s)
        if answer.is_whole:
            self.whole.append(answer.run_id)
            self._newest_s, self.slowest_s = now_s, max(self.slowest_s, took_s)
        else:
            self.others[f"{answer.status} {answer.code or 'broken'}"] += 1


@asynccontextmanager
async def asking(
    session: aiohttp.ClientSession, routers: Sequence[RouterProcess], model: str, clients: int
) -> AsyncGenerator[Seen]:
    """So many clients, each with a router of its own in turn, every second one of them reading streams, until the
    end of the block and of the requests that are under way then.
    """
    seen = Seen()

    async def send(number: int) -> None:
        began_s = time.monotonic()
        router = routers[number % len(routers)]
        answer = await ask(session, router.url, model, stream=number % 4 >= 2)
        seen.add(answer, time.monotonic() - began_s)
        await asyncio.sleep(PAUSE_S)

    async with keep_asking(send, clients):
        yield seen
