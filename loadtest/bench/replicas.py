"""Pass-through with one, two and four router replicas, in production mode (HAProxy).

The client, HAProxy and the replicas share this machine's cores, so requests per second stop growing when all
cores are busy. The CPU time of the router replicas per request does not depend on free cores. It shows
whether one replica makes the work of another more expensive.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from loadtest.bench.figures import Figure, figure
from loadtest.rig import RigError
from loadtest.rig.client import CHAT, BenchClient, chat
from loadtest.rig.closed_loop import rate_per_s
from loadtest.rig.ray_server import (
    BenchServer,
    cpu_s,
    fill_settings,
    podium,
    production_environment,
    start_isolated,
)

REPLICAS = (1, 2, 4)
ROUNDS = 5
ROUND_S = 4.0
CLIENTS = 32
BODY = chat("instant")


def figures(rounds: Mapping[int, Sequence[tuple[float, float]]]) -> list[Figure]:
    """Compute the figures.

    Args:
        rounds: the requests per second and the CPU milliseconds per request of each round, by number of
            replicas.
    """
    results: list[Figure] = []
    for count, measurements in rounds.items():
        results.append(figure(f"replicas_rps_{count}", [rps for rps, _ in measurements]))
        results.append(figure(f"router_cpu_ms_per_request_{count}", [cpu_ms for _, cpu_ms in measurements]))
    return results


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure each number of replicas with 32 clients for `ROUNDS` rounds, all on one Serve.

    The numbers of replicas take turns. Takes about two minutes.
    """
    served = [
        podium(f"of{count}", f"/of{count}", fill_settings("replicas.yaml", f"of{count}.yaml", REPLICAS=count))
        for count in REPLICAS
    ]
    rounds: dict[int, list[tuple[float, float]]] = {count: [] for count in REPLICAS}
    async with start_isolated("replicas", served, env=production_environment()) as (client, server):
        for count in REPLICAS:
            await _rps(client, count, 2.0)
        for _ in range(ROUNDS):
            for count in REPLICAS:
                rounds[count].append(await _round(client, server, count))
                tick()
    return figures(rounds)


async def _rps(client: BenchClient, count: int, seconds: float) -> float:
    return await rate_per_s(lambda: client.post(f"/of{count}{CHAT}", BODY), CLIENTS, seconds)


async def _round(client: BenchClient, server: BenchServer, count: int) -> tuple[float, float]:
    processes = server.replicas("router", f"of{count}")
    if len(processes) != count:
        raise RigError(f"Expected {count} router replicas, but found {len(processes)}.")
    began_s, before_s = time.monotonic(), cpu_s(processes)
    rps = await _rps(client, count, ROUND_S)
    answers = rps * (time.monotonic() - began_s)
    return rps, 1000 * (cpu_s(processes) - before_s) / answers
