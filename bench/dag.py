"""A plan of three independent steps and one that reads them, against its critical path and against the same in sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.client import Client, Json, chat, step
from bench.figures import Figure, figure

PAIRS = 16
SIDE_BY_SIDE = [step("a"), step("b"), step("c"), step("a", 0, 1, 2)]
IN_SEQUENCE = [step("a"), step("b", 0), step("c", 1), step("a", 2)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both plans, one after the other: the `podium` of the first's answer, and the client's seconds for each."""

    podium: Json
    side_by_side_s: float
    in_sequence_s: float


def figures(pairs: Sequence[Pair]) -> list[Figure]:
    """Ratios of each pair, then their medians."""
    critical_s = [pair.podium["critical_path_s"] for pair in pairs]
    return [
        figure("dag_wall_over_critical_path", [p.podium["wall_s"] / c for p, c in zip(pairs, critical_s, strict=True)]),
        figure("dag_client_wall_over_critical_path",
               [p.side_by_side_s / c for p, c in zip(pairs, critical_s, strict=True)]),
        figure("dag_speedup_over_sequential", [p.in_sequence_s / p.side_by_side_s for p in pairs]),
    ]  # fmt: skip


async def measure(client: Client, tick: Callable[[], None]) -> list[Figure]:
    """`PAIRS` pairs of runs; the plans are the caller's own, so nothing is decoded."""
    pairs: list[Pair] = []
    await client.answer(chat("podium-mini", podium={"plan": SIDE_BY_SIDE}))
    for _ in range(PAIRS):
        podium, side_by_side_s = await client.answer(chat("podium-mini", podium={"plan": SIDE_BY_SIDE}))
        _, in_sequence_s = await client.answer(chat("podium-mini", podium={"plan": IN_SEQUENCE}))
        pairs.append(Pair(podium, side_by_side_s, in_sequence_s))
        tick()
    return figures(pairs)
