"""Compare Podium with LiteLLM's proxy.

Each has one worker process. Both use the same upstream and the same machine, and take turns. Podium runs in
production mode, behind HAProxy. `proxies.py` describes a round.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import aiohttp

from loadtest.bench import litellm
from loadtest.bench.figures import Figure, figure
from loadtest.bench.proxies import Processes, ProxyRound, compare, measure_round, warm_up
from loadtest.rig.client import BenchClient
from loadtest.rig.processes import echo_upstream
from loadtest.rig.ray_server import listening_at, production_server, running

ROUNDS = 5


def figures(rounds: Sequence[ProxyRound]) -> list[Figure]:
    """Compute the ratios of each round and their medians."""
    upstream = figure("upstream_rps", [each["upstream"].rps for each in rounds])
    return [*compare("podium", "litellm", rounds), upstream]


async def measure(
    session: aiohttp.ClientSession, tick: Callable[[], None], say: Callable[[str], None]
) -> list[Figure]:
    """Measure `ROUNDS` rounds, after a warm-up."""
    await asyncio.to_thread(litellm.PEER.build, say)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(echo_upstream())
        server = await stack.enter_async_context(running(production_server(f"{upstream}/v1")))
        peer = await stack.enter_async_context(litellm.serve(f"{upstream}/v1"))
        urls = {"podium": server.url, "litellm": peer, "upstream": upstream}
        clients = {name: BenchClient(session, url) for name, url in urls.items()}
        processes: dict[str, Processes] = {
            "podium": lambda: [server.router()],
            "litellm": lambda: listening_at(peer),
        }
        for client in clients.values():
            await warm_up(client)
        rounds: list[ProxyRound] = []
        for number in range(ROUNDS):
            rounds.append(await measure_round(clients, processes, number))
            tick()
    return figures(rounds)
