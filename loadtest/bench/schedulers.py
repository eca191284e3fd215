"""Run the same plans under three schedulers on a real server: the paper's sequence, plan-then-run, and
Podium's.

- `podium`: steps start while the conductor writes the plan.
- `plan_then_run`: `POST /v1/plans`, then the plan as `podium.plan`.
- `sequential`: the same, and each step also reads the previous one.

The last two take two requests. Their second part is measured by the server's own clock (`wall_s`), so that
each scheduler counts one HTTP round trip.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from loadtest.bench.figures import Figure, figure, p95
from loadtest.capacity.inputs import load
from loadtest.capacity.plans import pick, reads
from loadtest.rig import Json, RigError
from loadtest.rig.client import BenchClient, chat, step
from loadtest.rig.ray_server import BUILD

PLANS = 204
CONCURRENT = 4
DELAYS_S = {"quick": 0.1, "middling": 0.2, "slow": 0.4}
"""Delays of the workers in schedulers.yaml."""
MODEL = "podium-mini"
OUTPUT = BUILD / "schedulers.json"


@dataclass(frozen=True, slots=True)
class Walls:
    """Seconds from request to answer of one plan under each scheduler."""

    steps: int
    podium: float
    plan_then_run: float
    sequential: float


def sample_plans(count: int, seed: int = 0) -> list[list[Json]]:
    """Sample plans with the lengths and shapes of the capacity simulation's mix, and
    uniformly drawn workers.
    """
    mix, rng = load().plans, np.random.default_rng(seed)
    workers = dict.fromkeys(DELAYS_S, 1 / len(DELAYS_S))

    def sample_plan() -> list[Json]:
        length, shape = pick(mix.steps, rng), pick(mix.shapes, rng)
        accesses = [reads(shape, index, index == length - 1, rng) for index in range(length)]
        return [step(pick(workers, rng), *access) for access in accesses]

    return [sample_plan() for _ in range(count)]


def in_sequence(plan: Sequence[Json]) -> list[Json]:
    """Return the same steps, each also reading the previous one."""
    return [
        each | {"access": sorted({*each["access"], *range(max(0, index - 1), index)})}
        for index, each in enumerate(plan)
    ]


def figures(walls: Sequence[Walls]) -> list[Figure]:
    """Compute Podium's wall time relative to each of the others', plan by plan."""
    over_sequential = [each.podium / each.sequential for each in walls]
    over_plan_then_run = [each.podium / each.plan_then_run for each in walls]
    return [
        figure("wall_over_sequential_p50", over_sequential),
        figure("wall_over_sequential_p95", over_sequential, p95),
        figure("wall_over_plan_then_run_p50", over_plan_then_run),
        figure("wall_over_plan_then_run_p95", over_plan_then_run, p95),
        figure("wall_podium_p50_s", [each.podium for each in walls]),
        figure("wall_plan_then_run_p50_s", [each.plan_then_run for each in walls]),
        figure("wall_sequential_p50_s", [each.sequential for each in walls]),
    ]


async def measure(client: BenchClient, tick: Callable[[], None]) -> list[Figure]:
    """Run `PLANS` plans, `CONCURRENT` at a time. Write wall times and their plot to
    build/bench/schedulers.*.
    """
    slots = asyncio.Semaphore(CONCURRENT)

    async def one(plan: list[Json]) -> Walls:
        async with slots:
            walls = await _run_plan(client, plan)
        tick()
        return walls

    await _run_plan(client, sample_plans(1)[0])
    walls = await asyncio.gather(*(one(plan) for plan in sample_plans(PLANS)))
    OUTPUT.write_text(json.dumps([asdict(each) for each in walls]) + "\n")
    draw(walls)
    return figures(walls)


def draw(walls: Sequence[Walls]) -> None:
    """Plot the three distributions as build/bench/schedulers.png."""
    from loadtest.plots import plot_distributions
    from podium.command_line.plots import save_plot

    names = ("podium", "plan_then_run", "sequential")
    samples = {name: [getattr(each, name) for each in walls] for name in names}
    title = f"{len(walls)} plans, real server, scripted workers"
    save_plot(OUTPUT.with_suffix(".png"), plot_distributions, samples, title=title)


async def _run_plan(client: BenchClient, plan: list[Json]) -> Walls:
    body = chat(MODEL, question="\n".join(json.dumps(each) for each in plan))
    podium, podium_s = await client.answer(body)
    if podium["fallback"] is not None:
        raise RigError(f"a plan was not run as written: {podium['fallback']}")
    began_s = time.monotonic()
    preview = await client.post_json("/v1/plans", body)
    plan_s = time.monotonic() - began_s
    if len(preview["plan"]) != len(plan):
        raise RigError(f"requested {len(plan)} steps, but {len(preview['plan'])} were written")
    then_run, _ = await client.answer(chat(MODEL, podium={"plan": plan}))
    sequence, _ = await client.answer(chat(MODEL, podium={"plan": in_sequence(plan)}))
    return Walls(len(plan), podium_s, plan_s + then_run["wall_s"], plan_s + sequence["wall_s"])
