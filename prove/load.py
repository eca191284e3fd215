"""Clients that ask without a pause while something goes wrong, and what each was told."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from prove.routers import RouterAnswer, RouterProcess, ask

PAUSE_S = 0.05


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
    seen, is_over = Seen(), False

    async def client(number: int) -> None:
        while not is_over:
            began_s = time.monotonic()
            router = routers[number % len(routers)]
            answer = await ask(session, router.url, model, stream=number % 4 >= 2)
            seen.add(answer, time.monotonic() - began_s)
            await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    try:
        yield seen
    finally:
        is_over = True
        await asyncio.gather(*tasks)
