"""Run a plan of three independent steps and a fourth that reads them. Compare its time with its critical path
and with the same steps in sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.bench.figures import Figure, figure
from loadtest.rig import Json
from loadtest.rig.client import BenchClient, chat, step

PAIRS = 16
PARALLEL = [step("a"), step("b"), step("c"), step("a", 0, 1, 2)]
SEQUENTIAL = [step("a"), step("b", 0), step("c", 1), step("a", 2)]


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each plan: the `podium` object of the parallel answer, and the client's seconds of both."""

    podium: Json
    parallel_s: float
    sequential_s: float


def figures(pairs: Sequence[Pair]) -> list[Figure]:
    """Compute the ratios of each pair and their medians."""
    wall = [pair.podium["wall_s"] / pair.podium["critical_path_s"] for pair in pairs]
    client_wall = [pair.parallel_s / pair.podium["critical_path_s"] for pair in pairs]
    return [
        figure("dag_wall_over_critical_path", wall),
        figure("dag_client_wall_over_critical_path", client_wall),
        figure("dag_speedup_over_sequential", [pair.sequential_s / pair.parallel_s for pair in pairs]),
    ]


async def measure(client: BenchClient, tick: Callable[[], None]) -> list[Figure]:
    """Run `PAIRS` pairs of plans. The client sends the plans, so the conductor is not called."""
    pairs: list[Pair] = []
    await client.answer(chat("podium-mini", podium={"plan": PARALLEL}))
    for _ in range(PAIRS):
        podium, parallel_s = await client.answer(chat("podium-mini", podium={"plan": PARALLEL}))
        _, sequential_s = await client.answer(chat("podium-mini", podium={"plan": SEQUENTIAL}))
        pairs.append(Pair(podium, parallel_s, sequential_s))
        tick()
    return figures(pairs)
