"""Cost for the router of clients that watch a run: CPU time per second of the run, and time to first token.

A run has two sequential steps that write 30 tokens per second. The router runs without Ray, over SQLite. Runs
with no watcher, one watcher and ten watchers take turns.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from loadtest.bench.figures import Figure, figure
from loadtest.rig import Json, RigError, poll
from loadtest.rig.client import BenchClient, chat, open_session
from loadtest.rig.databases import sqlite_address
from loadtest.rig.processes import cpu_s
from loadtest.rig.routers import running_router

ROUNDS = 5
WATCHERS = (0, 1, 10)
WORDS = " ".join(f"word{n}" for n in range(45))
SETTINGS: Json = {
    "workers": [{"name": name, "kind": "scripted", "replies": [WORDS], "tokens_per_s": 30} for name in "ab"],
    "workflows": {"pair": [{"worker": "a"}, {"worker": "b", "subtask": "Say it.", "access": [0]}]},
}
UNDER_WAY = "/v1/workflows?status=running&limit=1"


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """One run: the router's CPU time per second, and the time to the first token of the answer."""

    cpu_ms_per_s: float
    first_token_ms: float


def figures(runs: Mapping[int, Sequence[WatchedRun]]) -> list[Figure]:
    results = [figure(f"watching_cpu_ms_per_s_{n}", [run.cpu_ms_per_s for run in runs[n]]) for n in WATCHERS]
    bare_ms = median(run.first_token_ms for run in runs[0])
    late_ms = [run.first_token_ms - bare_ms for run in runs[WATCHERS[-1]]]
    return [*results, figure("watching_first_token_added_ms", late_ms)]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure runs with each number of watchers in `WATCHERS`. Takes about a minute."""
    with TemporaryDirectory() as folder:
        address = sqlite_address(Path(folder) / "podium.db")
        async with (
            running_router("watching", address, SETTINGS, has_keys=False) as router,
            open_session() as session,
        ):
            client, process = BenchClient(session, router.url), psutil.Process(router.process.pid)
            await _run(client, process, 1)  # warm-up
            runs: dict[int, list[WatchedRun]] = {n: [] for n in WATCHERS}
            for _ in range(ROUNDS):
                for n in WATCHERS:
                    runs[n].append(await _run(client, process, n))
                    tick()
            return figures(runs)


async def _run(client: BenchClient, process: psutil.Process, watchers: int) -> WatchedRun:
    before_s = cpu_s([process])
    asking = asyncio.create_task(client.stream(chat("pair")))
    async with _watching(client, watchers):
        result, _ = await asking
    if result.first_token_ms is None or result.done_ms is None:
        raise RigError("A watched run returned no answer.")
    return WatchedRun(1e6 * (cpu_s([process]) - before_s) / result.done_ms, result.first_token_ms)


@asynccontextmanager
async def _watching(client: BenchClient, n: int) -> AsyncGenerator[None]:
    """Watch the run that just started with `n` clients. Each reads the run's events to the end."""
    path = f"/v1/workflows/{await _find_run(client)}/events"
    watchers = [asyncio.create_task(_watch(client, path)) for _ in range(n)]
    yield
    await asyncio.gather(*watchers)


async def _find_run(client: BenchClient) -> str:
    runs = await poll(lambda: client.get(UNDER_WAY), lambda page: page["data"], within_s=5, every_s=0.02)
    if not runs["data"]:
        raise RigError("The run to watch did not start.")
    return str(runs["data"][0]["id"])


async def _watch(client: BenchClient, path: str) -> None:
    async with client.session.get(client.url + path) as response:
        events = await response.read()
    if b"event: end" not in events:
        raise RigError(f"A watcher did not receive the end event: {events[-300:]!r}")
