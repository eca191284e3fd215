"""Run the same plans on a real server under three schedulers.

- `podium`: a step starts while the conductor still writes the rest of the plan.
- `plan_then_run`: the client requests the plan (`POST /v1/plans`) and then sends it as `podium.plan`.
- `sequential`, as in the paper: the same, but each step also reads the previous one.

The last two need two requests. The time of the second one is the server's own `wall_s`, so that each
scheduler counts one HTTP round trip.
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
from loadtest.rig.processes import BUILD

PLANS = 204
CONCURRENT = 4
DELAYS_S = {"quick": 0.1, "middling": 0.2, "slow": 0.4}
"""Delays of the workers in schedulers.yaml."""
MODEL = "podium-mini"
OUTPUT = BUILD / "schedulers.json"


@dataclass(frozen=True, slots=True)
class Walls:
    """Seconds from the request to the answer of one plan, under each scheduler."""

    podium: float
    plan_then_run: float
    sequential: float


def sample_plans(count: int) -> list[list[Json]]:
    """Draw plans with the lengths and shapes of the capacity simulation's mix, and uniform workers."""
    mix, rng = load().plans, np.random.default_rng(0)
    workers = dict.fromkeys(DELAYS_S, 1 / len(DELAYS_S))

    def sample_plan() -> list[Json]:
        length, shape = pick(mix.steps, rng), pick(mix.shapes, rng)
        accesses = [reads(shape, index, index == length - 1, rng) for index in range(length)]
        return [step(pick(workers, rng), *access) for access in accesses]

    return [sample_plan() for _ in range(count)]


def in_sequence(plan: Sequence[Json]) -> list[Json]:
    """Return the plan's steps, changed so that each one also reads the previous one."""
    return [
        each | {"access": sorted({*each["access"], *range(max(0, index - 1), index)})}
        for index, each in enumerate(plan)
    ]


def figures(walls: Sequence[Walls]) -> list[Figure]:
    """Compute the ratios of Podium's wall time to that of each other scheduler, plan by plan."""
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
    """Run `PLANS` plans, `CONCURRENT` at a time, and plot their wall times."""
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
    """Plot the distribution of the wall times under each scheduler as build/bench/schedulers.png."""
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
        raise RigError(f"A plan did not run as written: {podium['fallback']}")
    began_s = time.monotonic()
    preview = await client.post_json("/v1/plans", body)
    plan_s = time.monotonic() - began_s
    if len(preview["plan"]) != len(plan):
        raise RigError(
            f"A plan of {len(plan)} steps was requested, but the conductor wrote {len(preview['plan'])}."
        )
    then_run, _ = await client.answer(chat(MODEL, podium={"plan": plan}))
    sequence, _ = await client.answer(chat(MODEL, podium={"plan": in_sequence(plan)}))
    return Walls(podium_s, plan_s + then_run["wall_s"], plan_s + sequence["wall_s"])
