"""Compare Podium, with every feature that costs time, to smg (a Rust gateway) and to an empty ingress of Ray
Serve.

The comparison is not like for like. Podium checks a key, reserves and settles a team's budget, and records
every run (SQLite). smg passes requests on, on as many threads as there are cores, without any of that and
without orchestration. The empty ingress reads the body and answers a constant of the answer's size; no
ingress of Ray Serve can serve more requests. Podium and the ingress are behind the same HAProxy. `proxies.py`
describes a round.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loadtest.bench import smg
from loadtest.bench.figures import Figure, figure
from loadtest.bench.proxies import (
    BODY,
    CLIENTS,
    ROUND_S,
    SEQUENTIAL,
    Processes,
    ProxyRound,
    compare,
    measure_round,
    warm_up,
)
from loadtest.rig.client import CHAT, BenchClient, open_session
from loadtest.rig.closed_loop import rate_per_s, times_ms
from loadtest.rig.databases import sqlite_address
from loadtest.rig.processes import echo_upstream
from loadtest.rig.ray_server import (
    BASELINE,
    BenchServer,
    fill_settings,
    listening_at,
    podium,
    production_environment,
    running,
)
from loadtest.rig.routers import make_key, url_of

ROUNDS = 5
CAP_USD = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class IngressSide:
    """Measurements of the empty ingress in one round."""

    p50_ms: float
    """Median latency, one client."""
    rps: float


def figures(rounds: Sequence[ProxyRound], ingress: Sequence[IngressSide]) -> list[Figure]:
    """Compute the ratios of each round and their medians."""
    rates = list(zip(rounds, ingress, strict=True))
    return [
        *compare("metered", "smg", rounds),
        figure("metered_rps_over_ingress", [each["metered"].rps / bare.rps for each, bare in rates]),
        figure("ingress_rps_over_smg", [bare.rps / each["smg"].rps for each, bare in rates]),
        figure("ingress_rps", [bare.rps for bare in ingress]),
        figure("ingress_added_p50_ms", [bare.p50_ms - each["upstream"].p50_ms for each, bare in rates]),
        figure("smg_upstream_rps", [each["upstream"].rps for each in rounds]),
    ]


@asynccontextmanager
async def _running_podium(
    upstream: str, folder: Path
) -> AsyncGenerator[tuple[BenchClient, BenchClient, BenchServer]]:
    """Run Podium and the empty ingress. Yield a client of Podium with a key, a client of the ingress, and the
    server.
    """
    address = sqlite_address(folder / "podium.db")
    key = await make_key(address, CAP_USD)
    settings = fill_settings("paid.yaml", UPSTREAM=upstream)
    env = production_environment() | {"PODIUM_STORE_URL": url_of(address)}
    server = BenchServer("paid", [podium("podium", "/", settings), BASELINE], env=env)
    async with running(server), open_session(key.headers) as paying, open_session() as session:
        yield BenchClient(paying, server.url), BenchClient(session, server.url), server


async def _measure_ingress(client: BenchClient, path: str) -> IngressSide:
    times = await times_ms(lambda: client.post(path, BODY), SEQUENTIAL)
    return IngressSide(median(times), await rate_per_s(lambda: client.post(path, BODY), CLIENTS, ROUND_S))


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure `ROUNDS` rounds, after a warm-up. Takes about three minutes."""
    await asyncio.to_thread(smg.PEER.build, print)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        upstream = await stack.enter_async_context(echo_upstream())
        ours, bare, server = await stack.enter_async_context(_running_podium(f"{upstream}/v1", folder))
        urls = {"smg": await stack.enter_async_context(smg.serve(upstream)), "upstream": upstream}
        clients = {"metered": ours} | {name: BenchClient(bare.session, url) for name, url in urls.items()}
        processes: dict[str, Processes] = {
            "metered": lambda: [server.router()],
            "smg": lambda: listening_at(urls["smg"]),
        }
        for client in clients.values():
            await warm_up(client)
        path = f"/bare/{len(await clients['upstream'].post(CHAT, BODY))}"
        rounds: list[ProxyRound] = []
        ingress: list[IngressSide] = []
        for number in range(ROUNDS):
            rounds.append(await measure_round(clients, processes, number))
            ingress.append(await _measure_ingress(bare, path))
            tick()
    return figures(rounds, ingress)
