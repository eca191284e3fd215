"""`python -m loadtest.simulator.check --url ...`: a real, scripted server under open-loop load, as a section for `inputs.yaml`.

The server must be `python -m cluster.serve --settings cluster/scripted.yaml` on this machine: what its script says, and how fast,
is in `STEPS` here. CPU times are read from the processes behind the URL's port. The simulation is later given the same arrivals,
and the CPU of a request as it was at the middle one of the rates; the others it must foretell. It also prints what a router's
CPU goes into, for the section `router`: plans of one step and of four, the conductor's plan, and a streamed answer.
"""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import psutil
import yaml
from rich.console import Console

from loadtest.simulator.arrivals import poisson
from loadtest.simulator.cluster import percentile
from loadtest.simulator.real import rate_of

BODY = {"model": "podium-mini", "messages": [{"role": "user", "content": "What is it?"}]}
COSTED, COSTED_AT_ONCE = 160, 8
"""Requests of each sort that the router's CPU is divided by."""
CONDUCTOR_TOKEN_MS = 5.0
STEPS: list[dict[str, Any]] = [
    {"worker": "a", "written_tokens": 10, "first_token_s": 0.3, "output_tokens": 1, "token_ms": 0},
    {"worker": "b", "written_tokens": 10, "first_token_s": 0.3, "output_tokens": 1, "token_ms": 0},
    {"worker": "c", "written_tokens": 8, "first_token_s": 0.3, "output_tokens": 16, "token_ms": 10},
    {
        "worker": "c",
        "reads": [0, 1, 2],
        "written_tokens": 15,
        "first_token_s": 0.3,
        "output_tokens": 16,
        "token_ms": 10,
    },
]
"""`cluster/scripted.yaml`: its conductor's plan, counted in words, and what its workers take."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One rate's requests: seconds each took, how many ended a second, CPU seconds of router and proxy for each."""

    rate_rps: float
    seed: int
    took_s: list[float]
    done_rps: float
    router_cpu_s: float
    proxy_cpu_s: float


def processes(port: int) -> tuple[psutil.Process, psutil.Process]:
    """The router replica and the proxy behind `port`.

    Raises:
        ValueError: they are not found, as behind HAProxy or on another machine.
    """
    listening = (
        c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port
    )
    proxy = next((psutil.Process(c.pid) for c in listening if c.pid), None)
    if proxy is None or proxy.pid == os.getpid():
        raise ValueError(f"nothing on this machine listens on port {port}")
    beside = psutil.Process(proxy.ppid()).children(recursive=True)
    router = next(
        (p for p in beside if "ServeReplica" in "".join(p.cmdline()) and "router" in "".join(p.cmdline())),
        None,
    )
    if router is None:
        raise ValueError(f"no router replica runs beside the proxy on port {port}")
    return router, proxy


def cpu_s(process: psutil.Process) -> float:
    """CPU that it has used, its threads included."""
    used = process.cpu_times()
    return used.user + used.system


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any] = BODY) -> float:
    """Seconds of one request.

    Raises:
        ValueError: the status is not 200.
    """
    began_s = time.monotonic()
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        content = await response.read()
    if response.status != 200:
        raise ValueError(f"{response.status} {content[:200]!r}")
    return time.monotonic() - began_s


async def at_rate(
    session: aiohttp.ClientSession, url: str, rate_rps: float, duration_s: float, seed: int
) -> Seen:
    """Ask at Poisson times, whether or not earlier answers are there."""
    arrivals = poisson(rate_rps, duration_s, np.random.default_rng(seed))
    watched = processes(urlsplit(url).port or 80)
    before = [cpu_s(process) for process in watched]
    began_s = time.monotonic()
    ended_s: list[float] = []

    async def one(at_s: float) -> float:
        await asyncio.sleep(began_s + at_s - time.monotonic())
        took_s = await ask(session, url)
        ended_s.append(time.monotonic() - began_s)
        return took_s

    took_s = await asyncio.gather(*(one(float(at_s)) for at_s in arrivals))
    router_s, proxy_s = ((cpu_s(p) - was) / len(took_s) for p, was in zip(watched, before, strict=True))
    return Seen(rate_rps, seed, list(took_s), rate_of(ended_s, duration_s), router_s, proxy_s)


async def measure(
    url: str, rates: list[float], duration_s: float, console: Console
) -> tuple[list[Seen], float]:
    """Every rate, and the milliseconds of HTTP around one request at a time."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        alone_s = [await ask(session, url) for _ in range(8)][3:]
        seen: list[Seen] = []
        for number, rate_rps in enumerate(rates):
            seen.append(await at_rate(session, url, rate_rps, duration_s, seed=number + 1))
            last = seen[-1]
            console.print(
                f"{rate_rps:g}/s: p50 {1000 * percentile(last.took_s, 0.5):.0f} ms, p95 {1000 * percentile(last.took_s, 0.95):.0f} ms, "
                f"{last.done_rps:.1f}/s done, CPU {1000 * last.router_cpu_s:.1f} ms router, {1000 * last.proxy_cpu_s:.1f} ms proxy"
            )
        costs = await router_costs(session, url)
    return seen, 1000 * percentile(alone_s, 0.5) - scripted_ms(), costs


def given(steps: int, worker: str, *, stream: bool = False) -> dict[str, Any]:
    """A body with a plan of its own: `steps` steps side by side, but for the last, which reads them."""
    plan = [{"worker": worker, "subtask": "Say it.", "access": []} for _ in range(steps)]
    plan[-1]["access"] = list(range(steps - 1))
    return BODY | {"stream": stream, "podium": {"plan": plan}}


async def router_costs(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """CPU milliseconds of the router, by what they go into; each is a difference of two sorts of requests."""
    router, _ = processes(urlsplit(url).port or 80)

    async def cost_ms(body: dict[str, Any]) -> float:
        room = asyncio.Semaphore(COSTED_AT_ONCE)

        async def one() -> None:
            async with room:
                await ask(session, url, body)

        before_s = cpu_s(router)
        await asyncio.gather(*(one() for _ in range(COSTED)))
        return 1000 * (cpu_s(router) - before_s) / COSTED

    one, four = await cost_ms(given(1, "a")), await cost_ms(given(4, "a"))
    planned, streamed = await cost_ms(BODY), await cost_ms(given(1, "c", stream=True))
    step = (four - one) / 3
    inner_tokens = sum(s["written_tokens"] + (s["output_tokens"] if s["token_ms"] else 0) for s in STEPS)
    return {
        "cpu_ms_per_request": round(one - step, 2), "cpu_ms_per_step": round(step, 2),
        "cpu_ms_per_inner_token": round((planned - four) / inner_tokens, 3),
        "cpu_ms_per_answer_token": round((streamed - one) / STEPS[-1]["output_tokens"], 3),
    }  # fmt: skip


def scripted_ms() -> float:
    """What the script alone takes: the third step's last word, and then the fourth step."""
    written_ms = CONDUCTOR_TOKEN_MS * (sum(step["written_tokens"] for step in STEPS[:3]) - 1)
    return written_ms + sum(
        1000 * s["first_token_s"] + s["token_ms"] * (s["output_tokens"] - 1) for s in STEPS[2:]
    )


def section(seen: list[Seen], http_ms: float, duration_s: float) -> dict[str, Any]:
    """The section `checked`; the CPU of a request is the middle rate's."""
    middle = sorted(seen, key=lambda each: each.rate_rps)[(len(seen) - 1) // 2]
    cpu_ms = [round(1000 * used, 2) for used in (middle.router_cpu_s, middle.proxy_cpu_s)]
    rates = [
        {
            "rate_rps": each.rate_rps, "seed": each.seed, "p50_ms": round(1000 * percentile(each.took_s, 0.5), 1),
            "p95_ms": round(1000 * percentile(each.took_s, 0.95), 1), "done_rps": round(each.done_rps, 2),
        }
        for each in seen
    ]  # fmt: skip
    return {
        "source": f"python -m loadtest.simulator.check, cluster/scripted.yaml, {os.cpu_count()} cores, client included",
        "date": datetime.now(UTC).date(), "kind": "measured", "duration_s": duration_s, "conductor_token_ms": CONDUCTOR_TOKEN_MS,
        "steps": STEPS, "http_ms": round(max(0.0, http_ms - sum(cpu_ms)), 1),
        "router_cpu_ms": cpu_ms[0], "proxy_cpu_ms": cpu_ms[1], "rates": rates,
    }  # fmt: skip


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.simulator.check", description=__doc__)
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument(
        "--rates", default="10,20,30,45,60,75", help="requests a second (default: %(default)s)"
    )
    parser.add_argument("--duration-s", type=float, default=10.0, help="at each rate (default: %(default)s)")
    args = parser.parse_args()
    console = Console(stderr=True)
    try:
        rates = [float(rate) for rate in args.rates.split(",")]
        seen, http_ms, costs = asyncio.run(measure(args.url.rstrip("/"), rates, args.duration_s, console))
    except (ValueError, OSError, aiohttp.ClientError, psutil.Error) as exc:
        console.print(f"[red]could not be measured:[/] {exc}")
        return 1
    sections = {"router": costs, "checked": section(seen, http_ms, args.duration_s)}
    print(yaml.safe_dump(sections, sort_keys=False, width=120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
