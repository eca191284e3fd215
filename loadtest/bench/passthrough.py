"""Compare requests per second of a worker called by name with an ingress that answers a constant of equal
size.

Both run in the same Serve behind the same proxy, with 32 closed-loop clients. They take turns, and the side
that starts alternates between rounds. The client does the same work for both.
"""

from collections.abc import Callable, Sequence

from loadtest.bench.figures import Figure, figure
from loadtest.rig.client import CHAT, BenchClient, chat
from loadtest.rig.closed_loop import rate_per_s

ROUNDS = 6
ROUND_S = 4.0
CLIENTS = 32


def figures(rounds: Sequence[tuple[float, float]]) -> list[Figure]:
    """Compute the figures from pairs of requests per second: pass-through and baseline."""
    return [
        figure("passthrough_over_bare_serve", [ours / bare for ours, bare in rounds]),
        figure("passthrough_rps", [ours for ours, _ in rounds]),
        figure("bare_serve_rps", [bare for _, bare in rounds]),
    ]


async def measure(client: BenchClient, tick: Callable[[], None]) -> list[Figure]:
    """Measure `ROUNDS` rounds of each side, after a warm-up of one second each."""
    body = chat("instant")
    sides = {"ours": CHAT, "bare": f"/bare/{len(await client.post(CHAT, body))}"}

    async def rate(side: str, seconds: float) -> float:
        return await rate_per_s(lambda: client.post(sides[side], body), CLIENTS, seconds)

    for side in sides:
        await rate(side, 1.0)
    rounds: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        order = sorted(sides, reverse=number % 2 == 0)
        rates = {side: await rate(side, ROUND_S) for side in order}
        rounds.append((rates["ours"], rates["bare"]))
        tick()
    return figures(rounds)
