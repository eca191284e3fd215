"""The same plans under three schedulers, on a real server: the paper's sequence, plan-then-run, and Podium's.

`podium`: the conductor writes the plan, steps start meanwhile. `plan_then_run`: `POST /v1/plans`, then its plan given as
`podium.plan`. `sequential`: the same, and each step also reads the one before. The latter two take two requests; so that each
is charged one HTTP round trip, their second leg is counted by the server's own clock (`wall_s`).
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import orjson

from bench.client import Client, Json, chat, step
from bench.figures import Figure, figure, p95
from bench.server import BUILD, BenchError
from capacity.inputs import load
from capacity.plans import pick, reads

PLANS = 204
AT_ONCE = 4
DELAYS_S = {"quick": 0.1, "middling": 0.2, "slow": 0.4}
"""Of the workers in schedulers.yaml."""
MODEL = "podium-mini"
SAMPLES = BUILD / "schedulers.json"


@dataclass(frozen=True, slots=True)
class Walls:
    """Seconds that one plan took, from asking to having the answer."""

    steps: int
    podium: float
    plan_then_run: float
    sequential: float


def sampled(count: int, seed: int = 0) -> list[list[Json]]:
    """Plans of the simulator's mix of lengths and shapes, their workers drawn evenly."""
    mix, rng = load().plans, np.random.default_rng(seed)
    workers = dict.fromkeys(DELAYS_S, 1 / len(DELAYS_S))

    def one() -> list[Json]:
        length, shape = pick(mix.steps, rng), pick(mix.shapes, rng)
        read = [reads(shape, index, index == length - 1, rng) for index in range(length)]
        return [step(pick(workers, rng), *access) for access in read]

    return [one() for _ in range(count)]


def in_sequence(plan: Sequence[Json]) -> list[Json]:
    """The same steps, each reading the one before as well."""
    return [
        each | {"access": sorted({*each["access"], *range(max(0, index - 1), index)})}
        for index, each in enumerate(plan)
    ]


def figures(walls: Sequence[Walls]) -> list[Figure]:
    """Podium's wall over each of the others', plan by plan."""
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


async def measure(client: Client, tick: Callable[[], None]) -> list[Figure]:
    """`PLANS` plans, `AT_ONCE` at a time; also leaves every wall time in build/bench/schedulers.json, and a plot of them."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(plan: list[Json]) -> Walls:
        async with room:
            walls = await _walls(client, plan)
        tick()
        return walls

    await _walls(client, sampled(1)[0])
    walls = await asyncio.gather(*(one(plan) for plan in sampled(PLANS)))
    SAMPLES.write_text(json.dumps([asdict(each) for each in walls]) + "\n")
    draw(walls)
    return figures(walls)


def draw(walls: Sequence[Walls]) -> None:
    """The three distributions, as build/bench/schedulers.png."""
    from capacity.plots import distributions

    samples = {
        name: [getattr(each, name) for each in walls] for name in ("podium", "plan_then_run", "sequential")
    }
    title = f"{len(walls)} plans, real server, scripted workers"
    distributions(samples, title, "seconds to the answer's end", SAMPLES.with_suffix(".png"))


async def _walls(client: Client, plan: list[Json]) -> Walls:
    body = chat(MODEL, question="\n".join(json.dumps(each) for each in plan))
    podium, podium_s = await client.answer(body)
    if podium["fallback"] is not None:
        raise BenchError(f"a plan was not run as it was written: {podium['fallback']}")
    began_s = time.monotonic()
    written = orjson.loads(await client.post("/v1/plans", body))
    plan_s = time.monotonic() - began_s
    if len(written["plan"]) != len(plan):
        raise BenchError(f"{len(plan)} steps were asked for, and {len(written['plan'])} written")
    then_run, _ = await client.answer(chat(MODEL, podium={"plan": plan}))
    sequence, _ = await client.answer(chat(MODEL, podium={"plan": in_sequence(plan)}))
    return Walls(len(plan), podium_s, plan_s + then_run["wall_s"], plan_s + sequence["wall_s"])
