"""Pass-through with one, two and four router replicas, in the mode for production: HAProxy, and Serve tuned for throughput.

Client, HAProxy and replicas share this machine's cores, so requests per second stop growing where the cores end. What a replica
does for a request does not depend on cores: CPU time of the router replicas over the requests they answered says whether one
replica makes another's work dearer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from bench.client import CHAT, Client, chat, per_s
from bench.figures import Figure, figure
from bench.isolated import alone, settings_file
from bench.server import APP, BenchError, Serve, application, production, replica_processes

REPLICAS = (1, 2, 4)
ROUNDS = 5
ROUND_S = 4.0
CLIENTS = 32
BODY = chat("instant")


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
    """`ROUNDS` rounds of 32 clients for each number of replicas, in turns, on one Serve; about two minutes."""
    served = [
        application(f"of{count}", f"/of{count}", APP, settings=str(_settings(count))) for count in REPLICAS
    ]
    rounds: dict[int, list[tuple[float, float]]] = {count: [] for count in REPLICAS}
    ready = [f"/of{count}/readyz" for count in REPLICAS]
    async with alone("replicas", served, ready=ready, env=production()) as (client, serve):
        for count in REPLICAS:
            await _rps(client, count, 2.0)
        for _ in range(ROUNDS):
            for count in REPLICAS:
                rounds[count].append(await _round(client, serve, count))
                tick()
    return figures(rounds)


def _settings(count: int) -> Path:
    return settings_file("replicas.yaml", f"of{count}.yaml", REPLICAS=count)


async def _rps(client: Client, count: int, seconds: float) -> float:
    return await per_s(lambda: client.post(f"/of{count}{CHAT}", BODY), CLIENTS, seconds)


async def _round(client: Client, serve: Serve, count: int) -> tuple[float, float]:
    processes = replica_processes(serve, "router", f"of{count}")
    if len(processes) != count:
        raise BenchError(f"found {len(processes)} router replicas where {count} were asked for")
    began_s, before_s = time.monotonic(), cpu_s(processes)
    rps = await _rps(client, count, ROUND_S)
    answered = rps * (time.monotonic() - began_s)
    return rps, 1000 * (cpu_s(processes) - before_s) / answered
