"""Scale from zero replicas to several and back under varying load. Measure lost streams and scaling times.

The engine is fake (`stand_in` in autoscaling.yaml): its replicas have a start-up time, a queue and a speed,
but no model. The number of active streams follows `LOAD`: one stream, a step, a ramp, a plateau, and a ramp
down to none. The replica counts come from Ray Serve through `GET /v1/replicas`. The result is plotted in
build/bench/autoscaling.svg and .png.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from loadtest.bench.figures import Figure, reading
from loadtest.rig import RigError
from loadtest.rig.client import REQUEST_ERRORS, BenchClient, chat
from loadtest.rig.processes import BUILD
from loadtest.rig.ray_server import HERE, start_isolated

WORDS = 40
"""Number of words in every answer. The engine writes ten per second; see autoscaling.yaml."""
LOAD = ((0.0, 1), (15.0, 1), (15.1, 8), (30.0, 8), (45.0, 16), (60.0, 16), (78.0, 0))
"""Load over time, as pairs of seconds since the first stream and the target number of active streams.

Between two pairs, the target changes linearly.
"""
STEP_S = LOAD[1][0]
POLL_S = 0.25
TO_ZERO_WITHIN_S = 60.0
DEPLOYMENT = "vllm-writer"
OUTPUT = BUILD / "autoscaling.json"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One sample: seconds since the first stream, active streams, replicas by state."""

    at_s: float
    streams: int
    running: int
    starting: int
    stopping: int


@dataclass(slots=True)
class ScalingRun:
    """Result of a run. `words` has the word count of each stream, or None for a stream that broke."""

    cold_start_s: float = 0.0
    words: list[int | None] = field(default_factory=list[int | None])
    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])
    streams: int = 0


def target_streams(at_s: float) -> float:
    """Return the target number of active streams at `at_s`, in seconds since the first stream."""
    for (from_s, low), (to_s, high) in pairwise(LOAD):
        if at_s < to_s:
            return low + (high - low) * (at_s - from_s) / (to_s - from_s)
    return LOAD[-1][1]


def figures(run: ScalingRun) -> list[Figure]:
    """Compute the figures from a run that starts and ends at zero replicas."""
    second_up_s = [each.at_s for each in run.snapshots if each.running >= 2]
    if not second_up_s or run.snapshots[-1].running:
        raise ValueError("the replicas did not scale up and down. See build/bench/autoscaling.svg.")
    last_stream_s = max(each.at_s for each in run.snapshots if each.streams)
    return [
        reading("autoscaling_lost", sum(words != WORDS for words in run.words)),
        reading("autoscaling_streams", len(run.words)),
        reading("autoscaling_replicas_peak", max(each.running for each in run.snapshots)),
        reading("autoscaling_cold_start_s", run.cold_start_s),
        reading("autoscaling_up_s", second_up_s[0] - STEP_S),
        reading("autoscaling_to_zero_s", run.snapshots[-1].at_s - last_stream_s),
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure once on a separate Serve. Takes about two minutes."""
    run = ScalingRun()
    async with start_isolated("autoscaling", HERE / "autoscaling.yaml") as (client, _):
        if (await replica_states(client)).get("running"):
            raise RigError("A replica was running before the first request.")
        await _load(client, run, tick)
    OUTPUT.write_text(json.dumps([asdict(each) for each in run.snapshots]) + "\n")
    for suffix in (".svg", ".png"):
        draw(run.snapshots, OUTPUT.with_suffix(suffix))
    return figures(run)


async def _load(client: BenchClient, run: ScalingRun, tick: Callable[[], None]) -> None:
    began_s = time.monotonic()
    watching = asyncio.create_task(_watch(client, run, began_s))
    try:
        most = max(streams for _, streams in LOAD)
        await asyncio.gather(*(_keep_asking(client, run, began_s, number, tick) for number in range(most)))
        for _ in range(int(TO_ZERO_WITHIN_S / POLL_S)):
            if not run.snapshots[-1].running and not run.snapshots[-1].stopping:
                break
            await asyncio.sleep(POLL_S)
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _keep_asking(
    client: BenchClient, run: ScalingRun, began_s: float, number: int, tick: Callable[[], None]
) -> None:
    """Run one stream after another while the target number of streams is above `number`."""
    while (at_s := time.monotonic() - began_s) < LOAD[-1][0]:
        if target_streams(at_s) <= number:
            await asyncio.sleep(POLL_S)
            continue
        run.streams += 1
        try:
            result, _ = await client.stream(chat("writer"))
            run.words.append(len(result.text.split()))
            if number == 0 and not run.cold_start_s:
                run.cold_start_s = (result.first_token_ms or 0.0) / 1000
        except REQUEST_ERRORS:
            run.words.append(None)
        finally:
            run.streams -= 1
            tick()


async def _watch(client: BenchClient, run: ScalingRun, began_s: float) -> None:
    while True:
        states = await replica_states(client)
        counts = (states.get(state, 0) for state in ("running", "starting", "stopping"))
        run.snapshots.append(Snapshot(time.monotonic() - began_s, run.streams, *counts))
        await asyncio.sleep(POLL_S)


async def replica_states(client: BenchClient) -> dict[str, int]:
    return (await client.get("/v1/replicas"))["replicas"].get(DEPLOYMENT, {})


def draw(snapshots: list[Snapshot], path: Path) -> None:
    """Plot streams and replicas over time."""
    from loadtest.plots import plot_autoscaling
    from podium.command_line.plots import save_plot

    rows = [(s.at_s, s.streams, s.running, s.running + s.starting + s.stopping) for s in snapshots]
    save_plot(path, plot_autoscaling, rows)
