"""Overhead of workflow steps: runs of one step, and of three sequential steps, whose workers answer
immediately.

The router runs in production mode and gets one request at a time. It is compared with the baseline ingress
behind the same HAProxy. The three kinds of requests are measured in turn.
"""

from collections.abc import Callable, Sequence
from statistics import median

import aiohttp

from loadtest.bench.figures import Figure, figure
from loadtest.rig.client import CHAT, BenchClient, chat
from loadtest.rig.closed_loop import times_ms
from loadtest.rig.ray_server import production_server, running

ROUNDS = 10
REQUESTS = 60
BARE = "/bare/900"
UNUSED = "http://127.0.0.1:9/v1"
"""Address for the endpoint that the settings require and this part never calls."""


def figures(rounds: Sequence[tuple[float, float, float]]) -> list[Figure]:
    """Compute the figures from the p50 milliseconds of each round: baseline, one step, three steps."""
    return [
        figure("added_per_step_1_ms", [one - bare for bare, one, _ in rounds]),
        figure("added_per_step_3_ms", [(three - bare) / 3 for bare, _, three in rounds]),
    ]


async def measure(session: aiohttp.ClientSession, tick: Callable[[], None]) -> list[Figure]:
    """Measure `ROUNDS` rounds of `REQUESTS` requests of each kind, after a warm-up round."""
    async with running(production_server(UNUSED)) as server:
        client = BenchClient(session, server.url)

        async def p50_ms(path: str, model: str) -> float:
            body = chat(model)
            return median(await times_ms(lambda: client.post(path, body), REQUESTS))

        rounds: list[tuple[float, float, float]] = []
        for _ in range(1 + ROUNDS):
            bare = await p50_ms(BARE, "unused")
            rounds.append((bare, await p50_ms(CHAT, "one-step"), await p50_ms(CHAT, "three-steps")))
            tick()
    return figures(rounds[1:])
