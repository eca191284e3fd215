"""Pass-through with one, two and four router replicas, in the mode for production: HAProxy, and Serve tuned for throughput.

Client, HAProxy and replicas share this machine's cores, so requests per second stop growing where the cores end. What a replica
does for a request does not depend on cores: CPU time of the router replicas over the requests they answered says whether one
replica makes another's work dearer.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from loadtest.bench.alone import alone, settings_file
from loadtest.bench.client import CHAT, chat
from loadtest.bench.figures import Figure, figure
from loadtest.bench.passthrough import per_s
from loadtest.bench.server import BenchError, replica_processes

REPLICAS = (1, 2, 4)
ROUNDS = 5
ROUND_S = 4.0
PRODUCTION = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}


def figures(rounds: Mapping[int, Sequence[tuple[float, float]]]) -> list[Figure]:
    """From requests per second and CPU milliseconds a request of each round, by the number of replicas."""
    told: list[Figure] = []
    for replicas, measured in rounds.items():
        told.append(figure(f"replicas_rps_{replicas}", [rps for rps, _ in measured]))
        told.append(figure(f"router_cpu_ms_per_request_{replicas}", [cpu_ms for _, cpu_ms in measured]))
    return told


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """What they have had so far, all threads, user and system."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """`ROUNDS` rounds of 32 clients on a Serve for each number of replicas; about two minutes."""
    return figures({replicas: await _rounds(replicas, tick) for replicas in REPLICAS})


async def _rounds(replicas: int, tick: Callable[[], None]) -> list[tuple[float, float]]:
    measured: list[tuple[float, float]] = []
    settings = settings_file("replicas.yaml", REPLICAS=replicas)
    async with alone(f"replicas_{replicas}", settings, env=PRODUCTION) as (client, serve):
        body = chat("instant")
        await per_s(client, CHAT, body, 2.0)
        processes = replica_processes(serve, "router")
        if len(processes) != replicas:
            raise BenchError(f"found {len(processes)} router replicas where {replicas} were asked for")
        for _ in range(ROUNDS):
            began_s, before_s = time.monotonic(), cpu_s(processes)
            rps = await per_s(client, CHAT, body, ROUND_S)
            answered = rps * (time.monotonic() - began_s)
            measured.append((rps, 1000 * (cpu_s(processes) - before_s) / answered))
            tick()
    return measured
