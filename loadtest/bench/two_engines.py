"""Start a second real vLLM engine under load. It must take its share of the requests, although all prompts
have the same prefix.

All questions share a system prompt, so prefix affinity alone would leave the second engine idle. Load must
override it. CPU time shows which engine answers, because an engine without requests uses almost none.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from loadtest.bench.autoscaling import DEPLOYMENT, replica_states
from loadtest.bench.figures import Figure, reading
from loadtest.rig import RigError
from loadtest.rig.client import REQUEST_ERRORS, BenchClient, chat
from loadtest.rig.closed_loop import keep_asking
from loadtest.rig.processes import cpu_s
from loadtest.rig.ray_server import HERE, BenchServer, start_isolated

STREAMS = 16
"""Concurrent streams during the whole measurement."""
TOKENS = 48
COMES_WITHIN_S = 120.0
POLL_S = 0.5
WATCH_S = 25.0
"""Seconds during which the CPU time of both engines is measured."""


def figures(complete: Sequence[bool], up_s: float, used_s: Mapping[int, float]) -> list[Figure]:
    """Compute the figures from complete streams, the second engine's start, and CPU seconds by process id."""
    if len(used_s) != 2 or not sum(used_s.values()):
        raise ValueError(f"expected the CPU time of two engines, but got {dict(used_s)}")
    return [
        reading("two_engines_up_s", up_s),
        reading("two_engines_lost", complete.count(False)),
        reading("two_engines_streams", len(complete)),
        reading("two_engines_lesser_share", min(used_s.values()) / sum(used_s.values())),
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure once on a separate Serve. Takes about two minutes."""
    complete: list[bool] = []
    async with start_isolated("two_engines", HERE / "two_engines.yaml") as (client, server):

        async def ask(number: int) -> None:
            question = f"Tell me at length about a fox, a mill and river {number}."
            try:
                result, _ = await client.stream(chat("writer", question=question, max_tokens=TOKENS))
                complete.append(bool(result.text))
            except REQUEST_ERRORS:
                complete.append(False)
            tick()

        began_s = time.monotonic()
        async with keep_asking(ask, STREAMS):
            await _wait_for_second_engine(client)
            up_s = time.monotonic() - began_s
            before_s = engine_cpu_s(server)
            await asyncio.sleep(WATCH_S)
            used_s = {pid: after_s - before_s.get(pid, 0.0) for pid, after_s in engine_cpu_s(server).items()}
    return figures(complete, up_s, used_s)


async def _wait_for_second_engine(client: BenchClient) -> None:
    for _ in range(int(COMES_WITHIN_S / POLL_S)):
        if (await replica_states(client)).get("running", 0) >= 2:
            return
        await asyncio.sleep(POLL_S)
    raise RigError(f"No second engine started within {COMES_WITHIN_S:.0f} s under load.")


def engine_cpu_s(server: BenchServer) -> dict[int, float]:
    """Return the CPU seconds of each engine replica with its engine core so far, by process id."""
    replicas = server.replicas(DEPLOYMENT)
    return {each.pid: cpu_s((each, *each.children(recursive=True))) for each in replicas}
