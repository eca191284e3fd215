"""Requests per second of a worker by its own name, over those of an ingress that answers a constant of the same size.

Both run in the same Serve behind the same proxy; 32 clients ask without a pause; rounds take turns, and which side begins
changes from round to round. The client's work is the same for both.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from loadtest.bench.client import CHAT, Client, Json, chat
from loadtest.bench.figures import Figure, figure

ROUNDS = 6
ROUND_S = 4.0
CLIENTS = 32


def figures(rounds: Sequence[tuple[float, float]]) -> list[Figure]:
    """From each round's requests per second: pass-through, bare."""
    return [
        figure("passthrough_over_bare_serve", [ours / bare for ours, bare in rounds]),
        figure("passthrough_rps", [ours for ours, _ in rounds]),
        figure("bare_serve_rps", [bare for _, bare in rounds]),
    ]


async def per_s(client: Client, path: str, body: Json, seconds: float) -> float:
    """Requests per second of `CLIENTS` clients for so long."""
    began_s = time.monotonic()
    done = 0

    async def ask() -> None:
        nonlocal done
        while time.monotonic() - began_s < seconds:
            await client.post(path, body)
            done += 1

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return done / (time.monotonic() - began_s)


async def measure(client: Client, tick: Callable[[], None]) -> list[Figure]:
    """`ROUNDS` rounds of each side, after one of a second that does not count."""
    body = chat("instant")
    sides = {"ours": CHAT, "bare": f"/bare/{len(await client.post(CHAT, body))}"}
    for path in sides.values():
        await per_s(client, path, body, 1.0)
    rounds: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        order = sorted(sides, reverse=number % 2 == 0)
        rates = {side: await per_s(client, sides[side], body, ROUND_S) for side in order}
        rounds.append((rates["ours"], rates["bare"]))
        tick()
    return figures(rounds)
