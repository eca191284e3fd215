"""`podium prove overload`: send one router up to ten times more load than the workers' slots can serve.

The slots are limited to a small part of the rate that the router itself can handle, so that the slots are the
bottleneck. There is one row per rate, with answers, latencies, rejections and the router's memory. Then
follow a flood with one key while another key is used moderately, a flood of `flex` requests with ordinary
requests, and, without a target, twice the router's own rate. The exit code is 1 if a target was missed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from rich.table import Table
from typer import Option

from loadtest.prove.proof import report_missed
from loadtest.rig import Json
from loadtest.rig.client import CHAT, BenchClient, open_session
from loadtest.rig.closed_loop import rate_per_s
from loadtest.rig.open_loop import OpenLoopResult, offer
from loadtest.rig.routers import RouterKey, RouterProcess, make_key, prepare_process, running_router, scripted
from podium.command_line.options import parse_seconds
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.database.address import sqlite_address

WORDS = (10, 20, 40, 80)
TOKENS_PER_S, FIRST_S = 25.0, 0.2
SERVICE_S = FIRST_S + sum(WORDS) / len(WORDS) / TOKENS_PER_S
"""Average seconds of a call. It is long enough that a slow router also gets about ten slots.

With two or three slots, random bursts would fill all of them, and a request with the moderate key would wait
as long for a slot as for its answer.
"""
MAX_WAIT_S = 1.5
PART = 25
"""Divisor: all slots together serve one request for every 25 that the router could answer by itself."""
CLIENTS = 64
"""Number of clients that measure how fast the router is by itself."""
TIMES = (0.3, 1.0, 2.0, 5.0, 10.0)
"""Offered loads as multiples of the slots' capacity. The first one leaves slots free and is the baseline."""
LEAST_GOODPUT, MOST_P99, MOST_GROWTH, LEAST_SHARE = 0.9, 2.0, 1.05, 0.9
BODY: Json = {"model": "busy", "messages": [{"role": "user", "content": "Why?"}], "stream": True}
TOO_MUCH = 2.0
"""Offered load of the last measurement, as a multiple of the router's own rate."""
PLACES = 20
"""Admission slots per worker slot in the flood of `flex` requests, few enough to be filled."""


def _settings(slots: int, **limits: int) -> Json:
    replies = [" ".join(f"word{n}" for n in range(words)) for words in WORDS]
    busy = scripted("busy", *replies, delay_s=FIRST_S, tokens_per_s=TOKENS_PER_S, max_wait_s=MAX_WAIT_S)
    return {
        "workers": [busy | {"max_concurrency": slots}, scripted("quick", "Because.")],
        "limits": {"first_byte_s": 0} | limits,
    }


@dataclass
class OverloadResult:
    router_rate: float
    slots: int
    saturated: OpenLoopResult
    """Outcomes for the router alone, under more load than it can answer."""
    loads: dict[str, OpenLoopResult]

    @property
    def baseline(self) -> OpenLoopResult:
        """Outcomes at a load that needs fewer slots than there are."""
        return next(iter(self.loads.values()))

    @property
    def peak(self) -> float:
        """Highest goodput over all rates, with one key."""
        return max(self.loads[_name(times)].goodput for times in TIMES)

    def faults(self) -> list[str]:
        worst = self.loads[_name(TIMES[-1])]
        checks = {
            "the goodput fell": worst.goodput < LEAST_GOODPUT * self.peak,
            "admitted requests were too slow": worst.p99_s > MOST_P99 * self.baseline.p99_s,
            "the router's memory grew": worst.memory_growth > MOST_GROWTH,
            "a 429 response had no Retry-After": worst.n_with_retry_after < worst.refused,
            "some requests were neither answered nor rejected": any(load.odd for load in self.loads.values()),
            "a flood starved another key": _share(self.loads["moderate key"]) < LEAST_SHARE,
            "a flood of flex starved ordinary requests": _share(self.loads["ordinary, during flex"])
            < LEAST_SHARE,
        }
        return [what for what, is_so in checks.items() if is_so]


def _share(load: OpenLoopResult) -> float:
    return len(load.took_s) / load.n


def _name(times: float) -> str:
    return f"{times:g}x"


async def _flood(
    router: RouterProcess, keys: Sequence[RouterKey], capacity: float, seconds: float, body: Json = BODY
) -> tuple[OpenLoopResult, OpenLoopResult]:
    """Send ten times the capacity with one key, and a third of the capacity with another."""
    async with open_session(keys[0].headers) as flooding, open_session(keys[1].headers) as modest:
        return await asyncio.gather(
            offer(flooding, router, body, TIMES[-1] * capacity, seconds, seed=2),
            offer(modest, router, BODY, capacity / 3, seconds, seed=3),
        )


async def prove(folder: Path, worst_s: float, step_s: float) -> OverloadResult:
    """Run all measurements. Raise RigError if the router rejected one of only `CLIENTS` clients."""
    address = sqlite_address(folder / "podium.db")
    keys = [await make_key(address, name=name) for name in ("flooding", "modest")]
    async with open_session(keys[0].headers) as session:
        async with running_router("overload-alone", address, _settings(1)) as router:
            client, body = BenchClient(session, router.url), BODY | {"model": "quick", "stream": False}
            rate = await rate_per_s(lambda: client.post(CHAT, body), CLIENTS, min(step_s, 10))
            beyond = await offer(session, router, body, TOO_MUCH * rate, step_s)
        slots = max(1, int(rate / PART * SERVICE_S))
        result, capacity = OverloadResult(rate, slots, beyond, {}), slots / SERVICE_S
        async with running_router("overload", address, _settings(slots)) as router:
            for times in TIMES:
                lasts_s = worst_s if times == TIMES[-1] else step_s
                load = await offer(session, router, BODY, times * capacity, lasts_s)
                result.loads[_name(times)] = load
            flood, modest = await _flood(router, keys, capacity, step_s)
            result.loads |= {"flooding key": flood, "moderate key": modest}
        few = _settings(slots, max_running=PLACES * slots)
        async with running_router("overload-flex", address, few) as router:
            flood, modest = await _flood(router, keys, capacity, step_s, BODY | {"service_tier": "flex"})
            result.loads |= {"flex": flood, "ordinary, during flex": modest}
    return result


def _table(result: OverloadResult) -> Table:
    title = f"{result.slots} slots; the router alone answers {result.router_rate:.0f} requests/s; {machine()}"
    columns = (
        *(
            "offered",
            "requests/s",
            "answered/s",
            "p50 s",
            "p99 s",
            "429",
            "with Retry-After",
            "other outcomes",
        ),
        *("router MB", "growth", "router CPU", "generator CPU"),
    )
    rows = table(right=columns, title=title)
    for name, load in (result.loads | {"saturated": result.saturated}).items():
        rows.add_row(
            *(name, f"{load.rate:.1f}", f"{load.goodput:.2f}", f"{load.p50_s:.3f}", f"{load.p99_s:.3f}"),
            *(str(load.refused), str(load.n_with_retry_after), load.others_text),
            *(f"{load.memory_mb[-1]:.0f}", f"{load.memory_growth:.3f}"),
            *(f"{load.router_cpu:.0%}", f"{load.own_cpu:.0%}"),
        )
    return rows


main = Program("podium prove overload")


@main.command(help=__doc__, epilog="Example: podium prove overload --worst-s 30")
def run(
    worst_s: Annotated[float, Option(parser=parse_seconds, help="seconds at the highest rate")] = 120.0,
    step_s: Annotated[float, Option(parser=parse_seconds, help="seconds at each other rate")] = 20.0,
) -> int:
    prepare_process()
    with TemporaryDirectory() as folder:
        result = asyncio.run(prove(Path(folder), worst_s, step_s))
    console().print(_table(result))
    return report_missed(result.faults())
