"""`podium prove soak`: a router under mixed load with faults and hang-ups for long, looked at after each of many rounds, when
all its clients have gone.

At rest, by the end as at the start: no more sockets, tasks, spans and files than after the warm-up, and memory level:
a line through what was seen after it rises by `MOST_GROWTH` at most, and so does the middle of the last quarter over
that of the first. Memory is what is held: Python's blocks, what C libraries have on the heap, and the process once free
pages went back to the system. The warm-up is the first third of the rounds: caches fill, the newest thousand calls that
each script keeps among them. Exit 1 where something has grown, hung, or was answered wrongly.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from loadtest.prove.mixed_load import MixedLoad
from loadtest.prove.tools import SETTINGS as TOOLS
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.fake_openai import FakeOpenAI, Faulty
from loadtest.rig.routers import RouterProcess, make_key, prepare_process, running_router
from loadtest.rig.vitals import Vitals, ask_vitals
from program.options import seconds
from program.process import machine, wide_console
from serving.database.address import sqlite_address

ROUNDS = 24
WARM_UP = 3
"""One round in so many is before the measurement."""
MOST_GROWTH = 1.02
RESTS_WITHIN_S, LOOKS_EVERY_S = 20.0, 0.5
FAULTS = 0.2
PLAN = '{"worker": "first", "subtask": "Find a reason.", "access": []}\n{"worker": "long", "subtask": "Say it.", "access": [0]}'
LEVEL = ("blocks", "heap_mb", "memory_mb")
COUNTED = ("runs", "calls", "files", "sockets", "tasks", "spans")


def _settings(url: str) -> Json:
    def worker(name: str, reply: str, **more: object) -> Json:
        return {"name": name, "kind": "scripted", "replies": [reply], "max_concurrency": 1000, **more}

    provider = {"name": "provider", "kind": "openai", "model": "shaky", "base_url": url, "hedge": True}
    limits = {"stall_timeout_s": 0.5, "first_token_timeout_s": 0.5, "max_concurrency": 100}
    return {
        "conductor": {"worker": "conductor", "format": "steps", "fallback": "quick"},
        "workers": [
            worker("conductor", PLAN, in_pool=False),
            worker("first", "A reason."),
            worker("quick", "Because."),
            worker("long", " ".join(f"word{n}" for n in range(40)), tokens_per_s=200),
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
class SoakFound:
    """What a router held at rest: after its start, and after each round; and what its clients were told."""

    round_s: float
    load: MixedLoad
    seen: list[Vitals] = field(default_factory=list[Vitals])
    upstream_calls: int = 0
    upstream_faults: int = 0

    @property
    def after_warm_up(self) -> list[Vitals]:
        """From the end of the warm-up on."""
        return self.seen[max(1, len(self.seen) // WARM_UP) :]

    def series(self, name: str) -> list[float]:
        """What was seen of one of them after the warm-up."""
        return [float(getattr(each, name)) for each in self.after_warm_up]

    def faults(self, most_growth: float = MOST_GROWTH) -> list[str]:
        """Whatever is not as it should be."""
        more = [f"{name} grew" for name in COUNTED if _has_more(self.series(name))]
        risen = [f"{name} grew" for name in LEVEL if growth(self.series(name)) > most_growth]
        bad = [f"{kind}: {dict(told)}" for kind, told in self.load.bad.items()]
        return more + risen + bad


def _has_more(series: Sequence[float]) -> bool:
    """Whether the last quarter never got as low as the first one was at some moment."""
    n = max(1, len(series) // 4)
    return min(series[-n:]) > max(series[:n])


def growth(series: Sequence[float]) -> float:
    """The greater of two: what a line ends at over where it begins, and the middle of the last quarter over the middle of
    the first. 1 for what is always 0, because it cannot be known here.

    The line is the Theil-Sen one, of the median slope between two looks: single looks at a moment in which more was in use, as the
    heap has them, do not tilt it as they tilt one of least squares.
    """
    if not any(series):
        return 1.0
    n = max(1, len(series) // 4)
    slope = statistics.median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(series), 2))
    begins = statistics.median(value - slope * i for i, value in enumerate(series))
    of_line = (begins + slope * (len(series) - 1)) / begins
    return max(of_line, statistics.median(series[-n:]) / statistics.median(series[:n]))


async def _rest(router: RouterProcess) -> Vitals:
    """What `router` holds once nothing is under way and nothing more is being closed; as it is, where that takes too
    long.
    """
    loop = asyncio.get_running_loop()
    ends_s, held = loop.time() + RESTS_WITHIN_S, await ask_vitals(router)
    while loop.time() < ends_s:
        before = held
        await asyncio.sleep(LOOKS_EVERY_S)
        held = await ask_vitals(router)
        is_idle = not (held.runs or held.calls or held.spans)
        if is_idle and all(getattr(held, name) == getattr(before, name) for name in COUNTED):
            break
    return held


async def soak(folder: Path, lasts_s: float, rounds: int = ROUNDS) -> SoakFound:
    """Measure it, with a store in `folder`."""
    address = sqlite_address(folder / "podium.db")
    key = await make_key(address)
    faulty = Faulty(FAULTS, first_s=0.02, stall_s=2.0)
    upstream = FakeOpenAI(faulty, keep_alive=False)
    found = SoakFound(lasts_s / rounds, MixedLoad())
    async with (
        upstream.running() as url,
        running_router("soak", address, _settings(url), watch=True) as router,
    ):
        found.seen.append(await _rest(router))
        for _ in range(rounds):
            async with open_session(key.headers) as session:
                await found.load.run(router, session, found.round_s)
            found.seen.append(await _rest(router))
    found.upstream_calls, found.upstream_faults = len(upstream.calls), faulty.faults
    return found


def _tables(found: SoakFound) -> list[Table]:
    held = Table(title=f"Held at rest, rounds of {found.round_s:.0f} s; {machine()}")
    for column in ("", "started", "after warm-up", "end", "growth"):
        held.add_column(column, justify="right")
    for name in (*COUNTED, *LEVEL):
        series = found.series(name)
        ends = (getattr(found.seen[0], name), series[0], series[-1])
        is_level = name in LEVEL
        held.add_row(name, *(f"{end:,.0f}" for end in ends), f"{growth(series):.4f}" if is_level else "")
    upstream = f"{found.upstream_faults:,} of {found.upstream_calls:,} calls upstream failed"
    told = Table(title=f"{found.load.n:,} requests; {upstream}")
    told.add_column("kind")
    outcomes = sorted({each for counts in found.load.told.values() for each in counts})
    for column in outcomes:
        told.add_column(column, justify="right")
    for kind, counts in sorted(found.load.told.items()):
        told.add_row(kind, *(str(counts[each]) for each in outcomes))
    return [held, told]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="podium prove soak", description=__doc__)
    parser.add_argument("--minutes", type=seconds, default=30.0, help="how long (%(default)s)")
    options = parser.parse_args(argv)
    prepare_process()
    with TemporaryDirectory() as folder:
        found = asyncio.run(soak(Path(folder), options.minutes * 60))
    console = wide_console()
    for table in _tables(found):
        console.print(table)
    memory = ", ".join(f"{each.memory_mb:.0f}" for each in found.seen)
    heap = ", ".join(f"{each.heap_mb:.0f}" for each in found.seen)
    blocks = ", ".join(f"{each.blocks / 1000:.0f}" for each in found.seen)
    console.print(f"memory at rest, MB: {memory}\nof it heap, MB: {heap}\nthousand blocks: {blocks}")
    faults = found.faults()
    console.print("; ".join(faults) or "all is at the end as at the start")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
