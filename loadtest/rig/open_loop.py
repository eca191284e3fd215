"""Open-loop clients: they send requests at a given rate, whether or not earlier ones were answered."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import orjson
import psutil

from loadtest import percentile
from loadtest.rig import Json
from loadtest.rig.processes import cpu_s
from loadtest.rig.routers import RouterProcess
from loadtest.sse import BrokenStreamError, read_stream

SAMPLE_S = 0.5
REFUSED_LATE = "line_too_long"
"""Error code of a request that was admitted but whose first call waited too long.

If its stream has started by then, the error is an event in the stream, not a 429.
"""


@dataclass
class OpenLoopResult:
    """Outcomes at one rate.

    Args:
        took_s: the latencies of complete answers, counted from when each request was due.
        n_with_retry_after: the number of 429 responses with a `Retry-After` of at least 1 s.
        others: the counts of all other outcomes. An error in a stream counts under its `code`, an incomplete
            stream as `cut`, a response under its status and code, and a broken connection under its
            exception.
        memory_mb: the router's memory, sampled every `SAMPLE_S`.
    """

    rate: float
    seconds: float
    took_s: list[float] = field(default_factory=list[float])
    refused: int = 0
    n_with_retry_after: int = 0
    others: Counter[str] = field(default_factory=Counter[str])
    memory_mb: list[float] = field(default_factory=list[float])
    router_cpu: float = 0.0
    own_cpu: float = 0.0

    @property
    def n(self) -> int:
        return len(self.took_s) + self.refused + self.others.total()

    @property
    def odd(self) -> Counter[str]:
        """Outcomes that are neither an answer nor a rejection."""
        return Counter({what: n for what, n in self.others.items() if what != REFUSED_LATE})

    @property
    def late_refusals(self) -> int:
        """Number of requests that were rejected by an event in their stream."""
        return self.others[REFUSED_LATE]

    @property
    def others_text(self) -> str:
        """Other outcomes as text, most common first."""
        return ", ".join(f"{n} {what}" for what, n in self.others.most_common())

    @property
    def goodput(self) -> float:
        """Complete answers per second."""
        return len(self.took_s) / self.seconds

    @property
    def p50_s(self) -> float:
        """Median latency of complete answers."""
        return percentile(self.took_s, 50)

    @property
    def p99_s(self) -> float:
        """99th percentile of the latency of complete answers."""
        return percentile(self.took_s, 99)

    @property
    def memory_growth(self) -> float:
        """Router memory in the last quarter of the run, divided by that in the second quarter."""
        n = max(1, len(self.memory_mb) // 4)
        return percentile(self.memory_mb[-n:], 50) / percentile(self.memory_mb[n : 2 * n], 50)


async def offer(
    session: aiohttp.ClientSession,
    router: RouterProcess,
    body: Json | Callable[[int], Json],
    rate: float,
    seconds: float,
    *,
    seed: int = 1,
) -> OpenLoopResult:
    """Send requests at random (Poisson) times, and wait for all answers. `body` may be a function of the
    request's number.
    """
    load, draws, began_s = OpenLoopResult(rate, seconds), random.Random(seed), time.monotonic()
    process = psutil.Process(router.process.pid)
    measured, own = [process], [psutil.Process()]
    router_s, own_s = cpu_s(measured), cpu_s(own)
    watching = asyncio.create_task(_watch_memory(process, load))
    try:
        async with asyncio.TaskGroup() as group:
            due_s, number = draws.expovariate(rate), 0
            while due_s < seconds:
                await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
                request = body(number) if callable(body) else body
                group.create_task(send(session, router.url, request, began_s + due_s, load))
                due_s, number = due_s + draws.expovariate(rate), number + 1
            await asyncio.sleep(max(0.0, began_s + seconds - time.monotonic()))
            load.router_cpu = (cpu_s(measured) - router_s) / seconds
            load.own_cpu = (cpu_s(own) - own_s) / seconds
        load.seconds = time.monotonic() - began_s
    finally:
        watching.cancel()
    return load


async def send(
    session: aiohttp.ClientSession, url: str, body: Json, due_s: float, load: OpenLoopResult
) -> None:
    """Send one request and record its outcome. `[DONE]` also follows errors, so the events decide."""
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            content = await response.read()
            took_s = time.monotonic() - due_s
            if response.status == 429:
                load.refused += 1
                load.n_with_retry_after += int(response.headers.get("retry-after", "0")) >= 1
            elif response.status != 200:
                load.others[f"{response.status} {_code(content)}".strip()] += 1
            else:
                if body.get("stream"):
                    read_stream([(0.0, line) for line in content.splitlines()], 0.0)
                load.took_s.append(took_s)
    except BrokenStreamError as broken:
        load.others[broken.kind] += 1
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        load.others[type(exc).__name__] += 1


def _code(content: bytes) -> str:
    try:
        return str(orjson.loads(content)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):  # a proxy's response
        return ""


async def _watch_memory(process: psutil.Process, load: OpenLoopResult) -> None:
    while True:
        load.memory_mb.append(process.memory_info().rss / 1e6)
        await asyncio.sleep(SAMPLE_S)
