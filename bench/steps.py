"""What a step of a workflow costs: fixed ones of one and of three steps in a row, whose scripted workers answer at once.

Served as in production, one request at a time, against the answer of the bare ingress behind the same HAProxy; all three take turns.
"""

from collections.abc import Callable, Sequence
from statistics import median

import aiohttp

from bench.client import CHAT, Client, chat, times_ms
from bench.figures import Figure, figure
from bench.server import entered, fast

ROUNDS = 10
ONE_BY_ONE = 60
BARE = "/bare/900"
NOBODY = "http://127.0.0.1:9/v1"
"""The upstream of a worker that this part does not ask."""


def figures(rounds: Sequence[tuple[float, float, float]]) -> list[Figure]:
    """From each round's p50 in milliseconds: the bare ingress, one step, three steps."""
    return [
        figure("added_per_step_1_ms", [one - bare for bare, one, _ in rounds]),
        figure("added_per_step_3_ms", [(three - bare) / 3 for bare, _, three in rounds]),
    ]


async def measure(session: aiohttp.ClientSession, tick: Callable[[], None]) -> list[Figure]:
    """`ROUNDS` rounds of `ONE_BY_ONE` requests of each sort, after one that does not count."""
    async with entered(fast(NOBODY)) as server:
        client = Client(session, server.url)

        async def p50_ms(path: str, model: str) -> float:
            body = chat(model)
            return median(await times_ms(lambda: client.post(path, body), ONE_BY_ONE))

        rounds: list[tuple[float, float, float]] = []
        for _ in range(1 + ROUNDS):
            bare = await p50_ms(BARE, "nobody")
            rounds.append((bare, await p50_ms(CHAT, "one-step"), await p50_ms(CHAT, "three-steps")))
            tick()
    return figures(rounds[1:])
