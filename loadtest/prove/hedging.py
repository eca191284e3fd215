"""`podium prove hedging`: measure a worker with a slow tail (one late first token in twenty), with and
without hedges.

There is one row for each measurement, with latencies and the calls to the worker's server per request. Two
more measurements follow. Under overload, no hedge may be sent. A worker that is down and has a fallback must
get few calls. The exit code is 1 if a target was missed.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from loadtest.prove.proof import report_missed
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.fake_openai import FakeOpenAI, Script, UpstreamCall, slow_tail
from loadtest.rig.open_loop import OpenLoopResult, offer
from loadtest.rig.routers import make_key, prepare_process, running_router
from podium.command_line.options import parse_count
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.database.address import sqlite_address

FIRST_S, SLOW_S, SHARE = 0.1, 2.0, 0.05
RATE = 30.0
SLOTS, FEW_SLOTS = 64, 4
WARM_UP = 100
"""Number of requests before the measurement, from which the router learns the worker's speed."""
MOST_ADDED = 0.05
MOST_TO_THE_DEAD = 10
"""Maximum calls to a dead worker: three open its circuit, then probes at growing intervals."""
BODY: Json = {"model": "tail", "messages": [{"role": "user", "content": "Why?"}], "stream": True}


def _body(number: int) -> Json:
    """Return a body with a unique question, by which the worker's calls are counted."""
    return BODY | {"messages": [{"role": "user", "content": f"Why {number}?"}]}


@dataclass(frozen=True)
class HedgingRow:
    """Result of one measurement.

    Args:
        calls: the number of calls to the worker's server.
        called_for: the number of requests that caused these calls. A request that was rejected before its
            first call does not count.
    """

    name: str
    load: OpenLoopResult
    calls: int
    called_for: int

    @property
    def extra_calls(self) -> int:
        """Number of hedges. Nothing is retried here, so every second call for a request is a hedge."""
        return self.calls - self.called_for

    @property
    def extra_share(self) -> float:
        return self.extra_calls / max(1, self.called_for)


def _settings(url: str, slots: int, *, hedge: bool) -> Json:
    worker = {"name": "tail", "kind": "openai", "model": "slow-tail", "base_url": url, "hedge": hedge}
    bounds = {"max_concurrency": slots, "max_wait_s": 0.5, "retry": {"attempts": 1}}
    return {"workers": [{**worker, **bounds}], "limits": {"first_byte_s": 0}}


async def measure(
    folder: Path, name: str, requests: int, rate: float, slots: int, *, hedge: bool
) -> HedgingRow:
    """Run one measurement, with a store in `folder`."""
    upstream = FakeOpenAI(slow_tail(FIRST_S, SLOW_S, SHARE))
    address = sqlite_address(folder / f"{name}.db")
    key = await make_key(address)
    async with upstream.running() as url, open_session(key.headers) as session:
        settings = _settings(url, slots, hedge=hedge)
        async with running_router(f"hedging-{name}", address, settings) as router:
            await offer(session, router, BODY, RATE / 2, WARM_UP / RATE * 2)
            upstream.calls.clear()
            load = await offer(session, router, _body, rate, requests / rate, seed=2)
            return HedgingRow(name, load, *_count(upstream))


async def prove(folder: Path, requests: int) -> list[HedgingRow]:
    """Measure the worker without hedges, with hedges, and with hedges under overload."""
    capacity = FEW_SLOTS / (FIRST_S * (1 - SHARE) + SLOW_S * SHARE)
    return [
        await measure(folder, "without", requests, RATE, SLOTS, hedge=False),
        await measure(folder, "with", requests, RATE, SLOTS, hedge=True),
        await measure(folder, "overload", requests, 3 * capacity, FEW_SLOTS, hedge=True),
    ]


def _count(upstream: FakeOpenAI) -> tuple[int, int]:
    """Return the number of calls, and the number of requests that caused them."""
    return len(upstream.calls), len({call.prompt for call in upstream.calls})


def _refuse(_: UpstreamCall) -> Script:
    return Script((), fault="503")


async def measure_dead(folder: Path, requests: int) -> HedgingRow:
    """Measure a dead worker with a fallback. `calls` counts only the calls to the dead one."""
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
    without, hedged, overload = rows
    checks = {
        "hedges did not shorten the tail": hedged.load.p99_s > without.load.p99_s / 2,
        "the median latency rose": hedged.load.p50_s > 1.2 * without.load.p50_s,
        "too many hedges were sent": hedged.extra_share > MOST_ADDED,
        "hedges were sent under overload": overload.extra_calls > 0,
        "some requests were neither answered nor rejected": any(row.load.odd for row in [*rows, dead]),
        "a worker that is down got too many calls": dead.calls > MOST_TO_THE_DEAD,
        "requests for a worker that is down were rejected": dead.load.refused + dead.load.late_refusals > 0,
    }
    return [what for what, is_so in checks.items() if is_so]


main = Program("podium prove hedging")


@main.command(help=__doc__, epilog="Example: podium prove hedging --requests 500")
def run(requests: Annotated[int, Option(parser=parse_count, help="requests per row")] = 2000) -> int:
    prepare_process()
    with TemporaryDirectory() as folder:
        rows = asyncio.run(prove(Path(folder), requests))
        dead = asyncio.run(measure_dead(Path(folder), requests))
    rates = table(
        right=("hedges", "requests/s", "answered", "p50 s", "p99 s", "429", "other outcomes", "added calls"),
        title=f"First token after {FIRST_S:g} s, or {SLOW_S:g} s for {SHARE:.0%} of the calls; {machine()}",
    )
    for row in rows:
        load = row.load
        rates.add_row(
            *(row.name, f"{load.rate:.0f}", str(len(load.took_s)), f"{load.p50_s:.3f}", f"{load.p99_s:.3f}"),
            *(str(load.refused), load.others_text, f"{row.extra_calls:+d} ({row.extra_share:+.1%})"),
        )
    out = console()
    out.print(rates)
    out.print(
        f"Worker down, with a fallback: {dead.calls} calls to it in {dead.load.n} requests, "
        f"{len(dead.load.took_s)} answered{dead.load.others_text and f' ({dead.load.others_text})'}: "
        f"p50 {dead.load.p50_s:.3f} s, p99 {dead.load.p99_s:.3f} s"
    )
    return report_missed(faults(rows, dead))
