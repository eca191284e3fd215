"""Closed-loop clients: each sends its next request when the last one is answered."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import psutil

from loadtest.rig.processes import cpu_s
from loadtest.rig.routers import RouterAnswer, RouterProcess, ask

PAUSE_S = 0.05


@asynccontextmanager
async def keep_asking(ask: Callable[[int], Awaitable[object]], clients: int) -> AsyncGenerator[None]:
    """Run `clients` tasks that call `ask` with their number again and again, until the end of the block."""
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
    """Return the answers per second that `clients` clients get if they send requests without a pause."""
    began_s = time.monotonic()
    n_answers = 0

    async def count(_: int) -> None:
        nonlocal n_answers
        await ask()
        n_answers += 1

    async with keep_asking(count, clients):
        await asyncio.sleep(seconds)
    return n_answers / (time.monotonic() - began_s)


async def rate_and_cpu(
    ask: Callable[[], Awaitable[object]], clients: int, seconds: float, processes: Sequence[psutil.Process]
) -> tuple[float, float]:
    """Return the answers per second, and the CPU milliseconds that the processes use per answer."""
    began_s, before_s = time.monotonic(), cpu_s(processes)
    per_s = await rate_per_s(ask, clients, seconds)
    answers = per_s * (time.monotonic() - began_s)
    return per_s, 1000 * (cpu_s(processes) - before_s) / answers


async def times_ms(ask: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Send `times` requests one after another, and return the milliseconds of each."""
    durations_ms: list[float] = []
    for _ in range(times):
        began_s = time.monotonic()
        await ask()
        durations_ms.append(1000 * (time.monotonic() - began_s))
    return durations_ms


@dataclass
class ClosedLoopResult:
    """Answers that the clients got.

    Args:
        other_outcomes: the counts of all other outcomes, by status and code.
        longest_gap_s: the longest time in which no client got a complete answer.
    """

    complete_answers: list[str] = field(default_factory=list[str])
    other_outcomes: Counter[str] = field(default_factory=Counter[str])
    longest_gap_s: float = 0.0
    slowest_answer_s: float = 0.0
    _newest_s: float = field(default_factory=time.monotonic)

    def add(self, answer: RouterAnswer, took_s: float) -> None:
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._newest_s)
        if answer.is_whole:
            self.complete_answers.append(answer.run_id)
            self._newest_s, self.slowest_answer_s = now_s, max(self.slowest_answer_s, took_s)
        else:
            self.other_outcomes[f"{answer.status} {answer.code or 'broken'}"] += 1


@asynccontextmanager
async def run_clients(
    session: aiohttp.ClientSession, routers: Sequence[RouterProcess], model: str, clients: int
) -> AsyncGenerator[ClosedLoopResult]:
    """Run `clients` clients, half of them streaming, until the end of the block. Open requests are completed."""
    outcomes = ClosedLoopResult()

    async def send(number: int) -> None:
        began_s = time.monotonic()
        router = routers[number % len(routers)]
        answer = await ask(session, router.url, model, stream=number % 4 >= 2)
        outcomes.add(answer, time.monotonic() - began_s)
        await asyncio.sleep(PAUSE_S)

    async with keep_asking(send, clients):
        yield outcomes
