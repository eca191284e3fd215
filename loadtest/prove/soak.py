"""`podium prove soak`: run a long mixed load with faults and disconnects on one router, and measure the
router at rest after each round.

At rest, the router must use no more at the end than after the warm-up: no more sockets, tasks, spans and
files, and level memory. Memory is level if two figures rise by at most `MOST_GROWTH`: a line through the
measurements, and the median of the last quarter over that of the first. Three kinds of memory are measured:
Python's blocks, the heap of C libraries, and the whole process after free pages were returned to the system.
The warm-up is the first third of the rounds, in which caches fill, such as the last thousand calls that each
script keeps. The exit code is 1 if anything grew, hung or was answered wrongly.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from rich.table import Table
from typer import Option

from loadtest.prove.mixed_load import MixedLoad
from loadtest.prove.proof import report_missed
from loadtest.prove.tools import SETTINGS as TOOLS
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.fake_openai import FakeOpenAI, Faulty
from loadtest.rig.routers import RouterProcess, make_key, prepare_process, running_router, scripted
from loadtest.rig.vitals import Vitals, ask_vitals
from podium.command_line.options import parse_seconds
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.database.address import sqlite_address

ROUNDS = 24
WARM_UP = 3
"""Divisor: one round in this many belongs to the warm-up."""
MOST_GROWTH = 1.02
RESTS_WITHIN_S, LOOKS_EVERY_S = 20.0, 0.5
FAULTS = 0.2
PLAN = '{"worker": "first", "subtask": "Find a reason.", "access": []}\n{"worker": "long", "subtask": "Say it.", "access": [0]}'
LEVEL = ("blocks", "heap_mb", "memory_mb")
COUNTED = ("runs", "calls", "files", "sockets", "tasks", "spans")


def _settings(url: str) -> Json:
    provider = {"name": "provider", "kind": "openai", "model": "shaky", "base_url": url, "hedge": True}
    limits = {"stall_timeout_s": 0.5, "first_token_timeout_s": 0.5, "max_concurrency": 100}
    return {
        "conductor": {"worker": "conductor", "format": "steps", "fallback": "quick"},
        "workers": [
            scripted("conductor", PLAN, in_pool=False),
            scripted("first", "A reason."),
            scripted("quick", "Because."),
            scripted("long", " ".join(f"word{n}" for n in range(40)), tokens_per_s=200),
            {**provider, **limits, "retry": {"attempts": 2, "first_wait_s": 0.05}},
            *TOOLS["workers"],
        ],
        "models": {"podium-mini": {"max_steps": 4, "rounds": 1}},
        "workflows": {
            **TOOLS["workflows"],
            "pair": [{"worker": "first"}, {"worker": "long", "subtask": "Say it.", "access": [0]}],
            "shaky": [{"worker": "provider"}, {"worker": "quick", "subtask": "Say it.", "access": [0]}],
        },
        "limits": {"first_byte_s": 0},
        "store": {"asked_again_s": 1},
    }


@dataclass
class SoakResult:
    """Resources of a router at rest, after its start and after each round, and the clients' outcomes."""

    round_s: float
    load: MixedLoad
    vitals: list[Vitals] = field(default_factory=list[Vitals])
    upstream_calls: int = 0
    upstream_faults: int = 0

    @property
    def after_warm_up(self) -> list[Vitals]:
        """Measurements after the warm-up."""
        return self.vitals[max(1, len(self.vitals) // WARM_UP) :]

    def series(self, name: str) -> list[float]:
        """Return the measurements of one resource after the warm-up."""
        return [float(getattr(each, name)) for each in self.after_warm_up]

    def faults(self, most_growth: float = MOST_GROWTH) -> list[str]:
        """Return a description of everything that is not as expected."""
        increased = [f"the number of {name} grew" for name in COUNTED if _has_more(self.series(name))]
        risen = [f"{name} grew" for name in LEVEL if growth(self.series(name)) > most_growth]
        unexpected = [f"{kind}: {dict(counts)}" for kind, counts in self.load.bad.items()]
        return increased + risen + unexpected


def _has_more(series: Sequence[float]) -> bool:
    """Return whether every value in the last quarter is above the maximum of the first quarter."""
    n = max(1, len(series) // 4)
    return min(series[-n:]) > max(series[:n])


def growth(series: Sequence[float]) -> float:
    """Return the factor by which a series grows, or 1 if all values are 0, which means that they are unknown.

    It is the larger of two factors: the rise of a fitted line, and the median of the last quarter divided by
    that of the first. The line is the Theil-Sen estimator (the median of pairwise slopes). Unlike least
    squares, it is not tilted by a few measurements during a peak.
    """
    if not any(series):
        return 1.0
    n = max(1, len(series) // 4)
    slope = statistics.median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(series), 2))
    begins = statistics.median(value - slope * i for i, value in enumerate(series))
    of_line = (begins + slope * (len(series) - 1)) / begins
    return max(of_line, statistics.median(series[-n:]) / statistics.median(series[:n]))


async def _rest(router: RouterProcess) -> Vitals:
    """Wait at most `RESTS_WITHIN_S` until the router is at rest. Return its resources."""
    loop = asyncio.get_running_loop()
    ends_s, vitals = loop.time() + RESTS_WITHIN_S, await ask_vitals(router)
    while loop.time() < ends_s:
        before = vitals
        await asyncio.sleep(LOOKS_EVERY_S)
        vitals = await ask_vitals(router)
        is_idle = not (vitals.runs or vitals.calls or vitals.spans)
        if is_idle and all(getattr(vitals, name) == getattr(before, name) for name in COUNTED):
            break
    return vitals


async def soak(folder: Path, lasts_s: float, rounds: int = ROUNDS) -> SoakResult:
    address = sqlite_address(folder / "podium.db")
    key = await make_key(address)
    faulty = Faulty(FAULTS, first_s=0.02, stall_s=2.0)
    upstream = FakeOpenAI(faulty, keep_alive=False)
    result = SoakResult(lasts_s / rounds, MixedLoad())
    async with (
        upstream.running() as url,
        running_router("soak", address, _settings(url), watch=True) as router,
    ):
        result.vitals.append(await _rest(router))
        for _ in range(rounds):
            async with open_session(key.headers) as session:
                await result.load.run(router, session, result.round_s)
            result.vitals.append(await _rest(router))
    result.upstream_calls, result.upstream_faults = len(upstream.calls), faulty.faults
    return result


def _tables(result: SoakResult) -> list[Table]:
    resources = table(
        right=("", "started", "after warm-up", "end", "growth"),
        title=f"Resources of the router at rest, after rounds of {result.round_s:.0f} s; {machine()}",
    )
    for name in (*COUNTED, *LEVEL):
        series = result.series(name)
        ends = (getattr(result.vitals[0], name), series[0], series[-1])
        is_level = name in LEVEL
        resources.add_row(name, *(f"{end:,.0f}" for end in ends), f"{growth(series):.4f}" if is_level else "")
    upstream = f"{result.upstream_faults:,} of {result.upstream_calls:,} upstream calls failed"
    outcomes = sorted({each for counts in result.load.outcomes.values() for each in counts})
    requests = table("kind", right=outcomes, title=f"{result.load.n:,} requests; {upstream}")
    for kind, counts in sorted(result.load.outcomes.items()):
        requests.add_row(kind, *(str(counts[each]) for each in outcomes))
    return [resources, requests]


main = Program("podium prove soak")


@main.command(help=__doc__, epilog="Example: podium prove soak --minutes 5")
def run(minutes: Annotated[float, Option(parser=parse_seconds, help="duration in minutes")] = 30.0) -> int:
    prepare_process()
    with TemporaryDirectory() as folder:
        result = asyncio.run(soak(Path(folder), minutes * 60))
    out = console()
    for each in _tables(result):
        out.print(each)
    memory = ", ".join(f"{each.memory_mb:.0f}" for each in result.vitals)
    heap = ", ".join(f"{each.heap_mb:.0f}" for each in result.vitals)
    blocks = ", ".join(f"{each.blocks / 1000:.0f}" for each in result.vitals)
    out.print(
        f"Memory at rest, MB: {memory}\nHeap of C libraries, MB: {heap}\nMemory blocks of Python, thousands: {blocks}"
    )
    return report_missed(result.faults())
