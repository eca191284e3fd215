"""`podium prove hedging`: a worker of which one first word in twenty is late, with and without hedges.

A row for each: how late answers are, and the calls that the worker's server was sent for each request. Then more than
its slots can take, where not one hedge may be made; and a worker that is down, with a fallback: the calls that still
reach it. Exit 1 where an aim is missed.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.fake_openai import FakeOpenAI, Script, UpstreamCall, slow_tail
from loadtest.rig.open_loop import OpenLoopResult, offer
from loadtest.rig.routers import make_key, prepare_process, running_router
from program.options import count
from program.process import machine, wide_console
from serving.database.address import sqlite_address

FIRST_S, SLOW_S, SHARE = 0.1, 2.0, 0.05
RATE = 30.0
SLOTS, FEW_SLOTS = 64, 4
KNOWN = 100
"""Requests before it is measured, so that the worker's pace is known."""
MOST_ADDED = 0.05
MOST_TO_THE_DEAD = 10
"""Calls: three until its circuit opens, and then one whenever it may be well again, after 5 s and ever longer."""
BODY: Json = {"model": "tail", "messages": [{"role": "user", "content": "Why?"}], "stream": True}


def _body(number: int) -> Json:
    """A question of its own, so that the worker's server can tell the calls of one request from those of others."""
    return BODY | {"messages": [{"role": "user", "content": f"Why {number}?"}]}


@dataclass(frozen=True)
class HedgingRow:
    """What came of one measurement.

    Args:
        calls: that the worker's server was sent.
        called_for: so many requests they were made for; one that was refused before its first call is none of them.
    """

    name: str
    load: OpenLoopResult
    calls: int
    called_for: int

    @property
    def extra_calls(self) -> int:
        """Second calls of one request: nothing is made again here, so they are hedges."""
        return self.calls - self.called_for

    @property
    def extra_share(self) -> float:
        """These, as a part of the requests that were called for."""
        return self.extra_calls / max(1, self.called_for)


def _settings(url: str, slots: int, *, hedge: bool) -> Json:
    worker = {"name": "tail", "kind": "openai", "model": "slow-tail", "base_url": url, "hedge": hedge}
    bounds = {"max_concurrency": slots, "max_wait_s": 0.5, "retry": {"attempts": 1}}
    return {"workers": [{**worker, **bounds}], "limits": {"first_byte_s": 0}}


async def measure(
    folder: Path, name: str, requests: int, rate: float, slots: int, *, hedge: bool
) -> HedgingRow:
    """One measurement, with a store in `folder`."""
    upstream = FakeOpenAI(slow_tail(FIRST_S, SLOW_S, SHARE))
    address = sqlite_address(folder / f"{name}.db")
    key = await make_key(address)
    async with upstream.running() as url, open_session(key.headers) as session:
        settings = _settings(url, slots, hedge=hedge)
        async with running_router(f"hedging-{name}", address, settings) as router:
            await offer(session, router, BODY, RATE / 2, KNOWN / RATE * 2)
            upstream.calls.clear()
            load = await offer(session, router, _body, rate, requests / rate, seed=2)
            return HedgingRow(name, load, *_count(upstream))


async def prove(folder: Path, requests: int) -> list[HedgingRow]:
    """Without, with, and with hedges under too much load."""
    capacity = FEW_SLOTS / (FIRST_S * (1 - SHARE) + SLOW_S * SHARE)
    return [
        await measure(folder, "without", requests, RATE, SLOTS, hedge=False),
        await measure(folder, "with", requests, RATE, SLOTS, hedge=True),
        await measure(folder, "overload", requests, 3 * capacity, FEW_SLOTS, hedge=True),
    ]


def _count(upstream: FakeOpenAI) -> tuple[int, int]:
    """Return the number of calls, and of the requests that they were made for."""
    return len(upstream.calls), len({call.prompt for call in upstream.calls})


def _refuse(_: UpstreamCall) -> Script:
    return Script((), fault="503")


async def measure_dead(folder: Path, requests: int) -> HedgingRow:
    """A worker that is down, and its fallback; the row's calls are those that the one that is down was sent."""
    dead, well = FakeOpenAI(_refuse), FakeOpenAI(slow_tail(FIRST_S, FIRST_S, 0))
    address = sqlite_address(folder / "dead.db")
    key = await make_key(address)
    async with dead.running() as dead_url, well.running() as well_url, open_session(key.headers) as session:
        worker = {"kind": "openai", "model": "m", "max_concurrency": SLOTS}
        workers = [
            worker | {"name": "tail", "base_url": dead_url, "fallbacks": ["well"]},
            worker | {"name": "well", "base_url": well_url},
        ]
        settings: Json = {"workers": workers, "limits": {"first_byte_s": 0}}
        async with running_router("hedging-dead", address, settings) as router:
            load = await offer(session, router, _body, RATE, requests / RATE)
    return HedgingRow("worker down", load, *_count(dead))


def faults(rows: list[HedgingRow], dead: HedgingRow) -> list[str]:
    """The aims that were missed."""
    without, hedged, overload = rows
    checks = {
        "the tail is still there": hedged.load.p99_s > without.load.p99_s / 2,
        "most answers are later": hedged.load.p50_s > 1.2 * without.load.p50_s,
        "too many calls were added": hedged.extra_share > MOST_ADDED,
        "calls were added under overload": overload.extra_calls > 0,
        "something was neither answered nor refused": any(row.load.odd for row in [*rows, dead]),
        "a worker that is down was asked too often": dead.calls > MOST_TO_THE_DEAD,
        "requests for it were refused": dead.load.refused + dead.load.late_refusals > 0,
    }
    return [what for what, is_so in checks.items() if is_so]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="podium prove hedging", description=__doc__)
    parser.add_argument("--requests", type=count, default=2000, help="of each row (%(default)s)")
    options = parser.parse_args(argv)
    prepare_process()
    with TemporaryDirectory() as folder:
        rows = asyncio.run(prove(Path(folder), options.requests))
        dead = asyncio.run(measure_dead(Path(folder), options.requests))
    table = Table(
        title=f"first word after {FIRST_S:g} s, {SHARE:.0%} of them after {SLOW_S:g} s; {machine()}"
    )
    for column in ("hedges", "requests/s", "answered", "p50 s", "p99 s", "429", "others", "calls added"):
        table.add_column(column, justify="right")
    for row in rows:
        load = row.load
        table.add_row(
            *(row.name, f"{load.rate:.0f}", str(len(load.took_s)), f"{load.p50_s:.3f}", f"{load.p99_s:.3f}"),
            *(str(load.refused), load.told, f"{row.extra_calls:+d} ({row.extra_share:+.1%})"),
        )
    console, missed = wide_console(), faults(rows, dead)
    console.print(table)
    console.print(
        f"A worker that is down, with a fallback: {dead.calls} calls to it in {dead.load.n} requests, "
        f"{len(dead.load.took_s)} of them answered{dead.load.told and f' ({dead.load.told})'}: "
        f"p50 {dead.load.p50_s:.3f} s, p99 {dead.load.p99_s:.3f} s"
    )
    console.print("; ".join(missed) or "every aim is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
