"""From no replica to several and back to none, under streams that come and go: is any of them cut, and how soon is help there?

The engine is the stand-in (`serving/deployments/stand_in.py`): a replica like any other with a start, a queue and a pace, but no
model. Streams under way follow `LOAD`: one, a step, a ramp, a plateau, a ramp down to none. Replicas are counted by Ray Serve,
asked through `GET /v1/replicas`. What was seen is drawn in build/bench/autoscaling.svg and .png.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import aiohttp

from bench.client import Client, chat
from bench.figures import Figure, counted
from bench.isolated import alone
from bench.server import BUILD, HERE, BenchError
from loadtest.sse import BrokenStreamError

WORDS = 40
"""Of every answer, at ten a second: `stand_in` in autoscaling.yaml."""
LOAD = ((0.0, 1), (15.0, 1), (15.1, 8), (30.0, 8), (45.0, 16), (60.0, 16), (78.0, 0))
"""Seconds since the first stream, and how many are meant to be under way then; straight lines between."""
STEP_S = LOAD[1][0]
LOOK_S = 0.25
TO_ZERO_WITHIN_S = 60.0
DEPLOYMENT = "vllm-writer"


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: seconds since the first stream, streams under way, replicas by state."""

    at_s: float
    streams: int
    running: int
    starting: int
    stopping: int


@dataclass(slots=True)
class Watched:
    """All that a run left behind; a stream's words are None where it broke."""

    cold_start_s: float = 0.0
    words: list[int | None] = field(default_factory=list[int | None])
    seen: list[Seen] = field(default_factory=list[Seen])
    streams: int = 0


def meant(at_s: float) -> float:
    """Streams that `LOAD` wants under way."""
    for (from_s, low), (to_s, high) in pairwise(LOAD):
        if at_s < to_s:
            return low + (high - low) * (at_s - from_s) / (to_s - from_s)
    return LOAD[-1][1]


def figures(watched: Watched) -> list[Figure]:
    """From a run that began and ended without a replica.

    Raises:
        ValueError: no second replica came, or the last one never went.
    """
    second = [look.at_s for look in watched.seen if look.running >= 2]
    if not second or watched.seen[-1].running:
        raise ValueError("the replicas did not come and go: see build/bench/autoscaling.svg")
    last_stream_s = max(look.at_s for look in watched.seen if look.streams)
    return [
        counted("autoscaling_lost", sum(words != WORDS for words in watched.words)),
        counted("autoscaling_streams", len(watched.words)),
        counted("autoscaling_replicas_peak", max(look.running for look in watched.seen)),
        counted("autoscaling_cold_start_s", watched.cold_start_s),
        counted("autoscaling_up_s", second[0] - STEP_S),
        counted("autoscaling_to_zero_s", watched.seen[-1].at_s - last_stream_s),
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """One run on a Serve of its own; about two minutes."""
    watched = Watched()
    async with alone("autoscaling", HERE / "autoscaling.yaml") as (client, _):
        if (await replicas(client)).get("running"):
            raise BenchError("a replica was up before anything was asked")
        await _run(client, watched, tick)
    SAMPLES.write_text(json.dumps([asdict(look) for look in watched.seen]) + "\n")
    draw(watched.seen, SAMPLES.with_suffix(".svg"))
    draw(watched.seen, SAMPLES.with_suffix(".png"))
    return figures(watched)


SAMPLES = BUILD / "autoscaling.json"


async def _run(client: Client, watched: Watched, tick: Callable[[], None]) -> None:
    began_s = time.monotonic()
    watching = asyncio.create_task(_watch(client, watched, began_s))
    try:
        most = max(streams for _, streams in LOAD)
        await asyncio.gather(*(_line(client, watched, began_s, number, tick) for number in range(most)))
        for _ in range(int(TO_ZERO_WITHIN_S / LOOK_S)):
            if not watched.seen[-1].running and not watched.seen[-1].stopping:
                break
            await asyncio.sleep(LOOK_S)
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _line(
    client: Client, watched: Watched, began_s: float, number: int, tick: Callable[[], None]
) -> None:
    """One stream after another, while more than `number` are meant to be under way."""
    while (at_s := time.monotonic() - began_s) < LOAD[-1][0]:
        if meant(at_s) <= number:
            await asyncio.sleep(LOOK_S)
            continue
        watched.streams += 1
        try:
            seen, _ = await client.stream(chat("writer"))
            watched.words.append(len(seen.text.split()))
            if number == 0 and not watched.cold_start_s:
                watched.cold_start_s = (seen.first_token_ms or 0.0) / 1000
        except (BrokenStreamError, BenchError, aiohttp.ClientError, TimeoutError):
            watched.words.append(None)
        finally:
            watched.streams -= 1
            tick()


async def _watch(client: Client, watched: Watched, began_s: float) -> None:
    while True:
        states = await replicas(client)
        counts = (states.get(state, 0) for state in ("running", "starting", "stopping"))
        watched.seen.append(Seen(time.monotonic() - began_s, watched.streams, *counts))
        await asyncio.sleep(LOOK_S)


async def replicas(client: Client) -> dict[str, int]:
    """The engine's replicas now, by state."""
    return (await client.get("/v1/replicas"))["replicas"].get(DEPLOYMENT, {})


def draw(seen: Sequence[Seen], path: Path) -> None:
    """Streams and replicas over time, as the kind of picture that `path` ends in."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Picture

    from loadtest.plots import STYLE

    with mpl.rc_context(STYLE):
        picture = Picture(figsize=(7, 3.5), layout="constrained")
        axes = picture.subplots()
        at_s = [look.at_s for look in seen]
        axes.fill_between(
            at_s,
            [look.streams for look in seen],
            step="post",
            color="#56b4e9",
            alpha=0.4,
            label="streams under way",
        )
        axes.step(at_s, [look.running for look in seen], where="post", color="#d55e00", label="replicas up")
        paid = [look.running + look.starting + look.stopping for look in seen]
        axes.step(
            at_s, paid, where="post", color="#d55e00", linestyle=":", label="and those that start or drain"
        )
        axes.set(xlabel="seconds since the first stream", ylabel="count", ylim=(0, None))
        axes.legend(loc="upper left")
        picture.savefig(path, dpi=120)
