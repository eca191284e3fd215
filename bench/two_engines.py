"""A second real vLLM engine comes under load and takes its part of it, though every prompt begins as the others do.

All questions share a system prompt, so prefix affinity alone would leave the newcomer idle; load must overrule it. Who answers is
told by CPU time: an engine that is asked nothing takes next to none.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp
import psutil

from bench.autoscaling import replicas
from bench.client import Client, chat
from bench.figures import Figure, counted
from bench.isolated import alone
from bench.server import HERE, BenchError, Serve, replica_processes
from loadtest.sse import BrokenStreamError

STREAMS = 16
"""Open at once, from the first to the last second."""
TOKENS = 48
COMES_WITHIN_S = 120.0
LOOK_S = 0.5
BOTH_S = 25.0
"""So long the two are watched."""


def figures(whole: Sequence[bool], up_s: float, worked_s: Mapping[int, float]) -> list[Figure]:
    """From each stream's being whole, the wait for the second engine, and CPU seconds by replica once there were two.

    Raises:
        ValueError: there were not two replicas, or they did nothing.
    """
    if len(worked_s) != 2 or not sum(worked_s.values()):
        raise ValueError(f"CPU seconds of two engines were to be compared, and there are {dict(worked_s)}")
    return [
        counted("two_engines_up_s", up_s),
        counted("two_engines_lost", whole.count(False)),
        counted("two_engines_streams", len(whole)),
        counted("two_engines_lesser_share", min(worked_s.values()) / sum(worked_s.values())),
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """One run on a Serve of its own; about two minutes."""
    whole: list[bool] = []
    async with alone("two_engines", HERE / "two_engines.yaml") as (client, serve):
        enough = asyncio.Event()
        began_s = time.monotonic()
        lines = [asyncio.create_task(_line(client, number, whole, enough, tick)) for number in range(STREAMS)]
        try:
            await _second(client)
            up_s = time.monotonic() - began_s
            before = cpu_s(serve)
            await asyncio.sleep(BOTH_S)
            worked_s = {pid: after_s - before.get(pid, 0.0) for pid, after_s in cpu_s(serve).items()}
        finally:
            enough.set()
            await asyncio.gather(*lines)
    return figures(whole, up_s, worked_s)


async def _second(client: Client) -> None:
    for _ in range(int(COMES_WITHIN_S / LOOK_S)):
        if (await replicas(client)).get("running", 0) >= 2:
            return
        await asyncio.sleep(LOOK_S)
    raise BenchError(f"no second engine came within {COMES_WITHIN_S:.0f} s of load")


async def _line(
    client: Client, number: int, whole: list[bool], enough: asyncio.Event, tick: Callable[[], None]
) -> None:
    while not enough.is_set():
        question = f"Tell me at length about a fox, a mill and river {number}."
        try:
            seen, _ = await client.stream(chat("writer", question=question, max_tokens=TOKENS))
            whole.append(bool(seen.text))
        except (BrokenStreamError, BenchError, aiohttp.ClientError, TimeoutError):
            whole.append(False)
        tick()


def cpu_s(serve: Serve) -> dict[int, float]:
    """What each engine's replica has had so far, its engine core included, by its process."""
    return {process.pid: _with_children_s(process) for process in replica_processes(serve, "vllm-writer")}


def _with_children_s(process: psutil.Process) -> float:
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)
