"""Cost per request of an API key, a team's budget, a price and a stored record, on SQLite and on PostgreSQL.

Three routers run at the same time, without Ray and with the same scripted worker: one without keys and
records, and one over each database. They are measured in turn, first with one closed-loop client and then
with 32.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loadtest import percentile
from loadtest.bench.figures import Figure, figure, reading
from loadtest.rig import Json
from loadtest.rig.client import CHAT, BenchClient, chat, open_session
from loadtest.rig.closed_loop import rate_per_s, times_ms
from loadtest.rig.databases import running_postgres, sqlite_address
from loadtest.rig.routers import make_key, running_router

ROUNDS = 10
REQUESTS = 60
"""Number of requests that the single client sends in a round."""
CLIENTS = 32
RATE_ROUNDS = 6
RATE_S = 3.0
BODY = chat("instant")
STORES = ("sqlite", "postgresql")
CAP_USD = Decimal(1_000_000)
INSTANT: Json = {"name": "instant", "kind": "scripted", "replies": ["It is an answer of some words."]}
PRICE: Json = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}


@dataclass(frozen=True, slots=True)
class Side:
    """Measurements of one router by round: the milliseconds of each request, and the requests per second."""

    rounds_ms: list[list[float]] = field(default_factory=list[list[float]])
    rates: list[float] = field(default_factory=list[float])

    @property
    def times_ms(self) -> list[float]:
        """Milliseconds of every request, over all rounds."""
        return [each for round_ms in self.rounds_ms for each in round_ms]


def figures(sides: Mapping[str, Side]) -> list[Figure]:
    """Compute the benchmark's figures from the measurements of each router: `plain`, and one for each of
    `STORES`.
    """
    plain, results = sides["plain"], list[Figure]()
    for name in STORES:
        side = sides[name]
        added = [
            median(ours) - median(bare) for ours, bare in zip(side.rounds_ms, plain.rounds_ms, strict=True)
        ]
        slow_ms = percentile(side.times_ms, 99) - percentile(plain.times_ms, 99)
        ratios = [ours / bare for ours, bare in zip(side.rates, plain.rates, strict=True)]
        results += [
            figure(f"metering_added_p50_ms_{name}", added),
            reading(f"metering_added_p99_ms_{name}", slow_ms),
            figure(f"metering_rps_over_plain_{name}", ratios),
        ]
    return [*results, figure("metering_plain_rps", plain.rates)]


@asynccontextmanager
async def running_sides(name: str, worker: Json, folder: Path) -> AsyncGenerator[dict[str, BenchClient]]:
    """Run the routers. Yield a client for each, with a key if needed. `name` is the prefix of the log files."""
    file = sqlite_address(folder / "podium.db")
    with ExitStack() as databases:
        postgres = await asyncio.to_thread(databases.enter_context, running_postgres())
        addresses = {"sqlite": file, "postgresql": await asyncio.to_thread(postgres.make_database)}
        async with AsyncExitStack() as stack:
            clients: dict[str, BenchClient] = {}
            settings: Json = {"workers": [worker], "store": {"records": False}}
            router = running_router(f"{name}-plain", file, settings, has_keys=False)
            session = await stack.enter_async_context(open_session())
            clients["plain"] = BenchClient(session, (await stack.enter_async_context(router)).url)
            for kind, address in addresses.items():
                key = await make_key(address, CAP_USD)
                router = running_router(f"{name}-{kind}", address, {"workers": [worker | {"price": PRICE}]})
                session = await stack.enter_async_context(open_session(key.headers))
                clients[kind] = BenchClient(session, (await stack.enter_async_context(router)).url)
            yield clients


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure the three routers. Takes about two minutes."""
    with TemporaryDirectory() as folder:
        async with running_sides("metering", INSTANT, Path(folder)) as clients:
            sides = {name: Side() for name in clients}
            for client in clients.values():
                await times_ms(lambda client=client: client.post(CHAT, BODY), REQUESTS)
            for number in range(ROUNDS):
                for name in _turns(list(clients), number):
                    ask = lambda client=clients[name]: client.post(CHAT, BODY)  # noqa: E731
                    sides[name].rounds_ms.append(await times_ms(ask, REQUESTS))
                tick()
            for number in range(RATE_ROUNDS):
                for name in _turns(list(clients), number):
                    ask = lambda client=clients[name]: client.post(CHAT, BODY)  # noqa: E731
                    sides[name].rates.append(await rate_per_s(ask, CLIENTS, RATE_S))
                tick()
            return figures(sides)


def _turns(names: Sequence[str], number: int) -> list[str]:
    """Return the names in the order of round `number`: each round starts with the next name."""
    first = number % len(names)
    return [*names[first:], *names[:first]]
