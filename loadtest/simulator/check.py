"""`python -m loadtest.simulator.check --url ...`: what a real, scripted server does, as two sections for `inputs.yaml`.

The server must be `podium serve --settings loadtest/simulator/scripted.yaml` on this machine, with `--fast` for the
deployed path: what its script says, and how fast, is in `STEPS` here. CPU times are read from the processes behind the URL's port.
`router` is fitted to five sorts of requests. `checked` holds what the fit must then foretell: other requests, streamed and not,
and Poisson arrivals at several rates, which the simulation is given again.
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

BODY: dict[str, Any] = {"model": "podium-mini", "messages": [{"role": "user", "content": "What is it?"}]}
COSTED, COSTED_AT_ONCE = 48, 8
"""Requests of each sort that the router's CPU is divided by."""
CONDUCTOR_TOKEN_MS = 5.0
STEPS: list[dict[str, Any]] = [
    {"worker": "a", "written_tokens": 50, "first_token_s": 0.3, "output_tokens": 1, "token_ms": 0},
    {"worker": "b", "written_tokens": 50, "first_token_s": 0.3, "output_tokens": 1, "token_ms": 0},
    {"worker": "c", "written_tokens": 50, "first_token_s": 0.3, "output_tokens": 16, "token_ms": 10},
    {
        "worker": "c",
        "reads": [0, 1, 2],
        "written_tokens": 50,
        "first_token_s": 0.3,
        "output_tokens": 16,
        "token_ms": 10,
    },
]
"""`scripted.yaml` beside this: its conductor's plan, counted in words, and what its workers take."""
LONG_TOKENS = 200
"""What its worker `long` says."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One rate's requests: seconds each took, how many ended a second, CPU seconds of router and proxy for each."""

    rate_rps: float
    seed: int
    streamed: bool
    took_s: list[float]
    done_rps: float
    router_cpu_s: float
    proxy_cpu_s: float


def processes(port: int) -> tuple[psutil.Process, psutil.Process]:
    """The router replica and the proxy behind `port`.

    Raises:
        ValueError: they are not found, as on another machine.
    """
    listening = {
        c.pid
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port
    }
    fronts = sorted((psutil.Process(pid) for pid in listening if pid), key=lambda front: front.create_time())
    if not fronts or fronts[-1].pid == os.getpid():
        raise ValueError(f"nothing on this machine listens on port {port}")
    proxy = fronts[-1]
    for above in (
        proxy.parents()
    ):  # HAProxy's parent is an actor, whose parent is the raylet; Serve's proxy is one itself
        for beside in above.children(recursive=True):
            if "ServeReplica" in (said := "".join(beside.cmdline())) and "router" in said:
                return beside, proxy
    raise ValueError(f"no router replica runs beside the proxy on port {port}")


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
    session: aiohttp.ClientSession, url: str, rate_rps: float, duration_s: float, seed: int, *, streamed: bool
) -> Seen:
    """Ask at Poisson times, whether or not earlier answers are there."""
    arrivals = poisson(rate_rps, duration_s, np.random.default_rng(seed))
    watched = processes(urlsplit(url).port or 80)
    before = [cpu_s(process) for process in watched]
    began_s = time.monotonic()
    ended_s: list[float] = []

    async def one(at_s: float) -> float:
        await asyncio.sleep(began_s + at_s - time.monotonic())
        took_s = await ask(session, url, BODY | {"stream": streamed})
        ended_s.append(time.monotonic() - began_s)
        return took_s

    took_s = await asyncio.gather(*(one(float(at_s)) for at_s in arrivals))
    router_s, proxy_s = ((cpu_s(p) - was) / len(took_s) for p, was in zip(watched, before, strict=True))
    return Seen(rate_rps, seed, streamed, list(took_s), rate_of(ended_s, duration_s), router_s, proxy_s)


async def measure(url: str, rates: list[float], duration_s: float, console: Console) -> dict[str, Any]:
    """What goes into the router's CPU, what that must foretell, every rate, and the HTTP around one request at a time."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        alone_s = [await ask(session, url) for _ in range(8)][3:]
        fitted = await router_costs(session, url)
        console.print(f"router: {fitted}")
        foretold = [await alone(session, url, stream=stream) for stream in (False, True)]
        console.print(f"to foretell: {foretold}")
        seen: list[Seen] = []
        for number, rate_rps in enumerate(rates):
            for streamed in (False, True):
                seen.append(await at_rate(session, url, rate_rps, duration_s, number + 1, streamed=streamed))
                last = seen[-1]
                console.print(
                    f"{rate_rps:g}/s{', streamed' * streamed}: p50 {1000 * percentile(last.took_s, 0.5):.0f} ms, "
                    f"p95 {1000 * percentile(last.took_s, 0.95):.0f} ms, {last.done_rps:.1f}/s done, "
                    f"CPU {1000 * last.router_cpu_s:.1f} ms router, {1000 * last.proxy_cpu_s:.1f} ms proxy"
                )
    added_ms = 1000 * percentile(alone_s, 0.5) - scripted_ms()
    return {
        "router": fitted,
        "checked": section(seen, foretold, duration_s) | {"http_added_ms": round(added_ms, 1)},
    }


async def alone(session: aiohttp.ClientSession, url: str, *, stream: bool) -> dict[str, Any]:
    """One step of many words, which nothing was fitted to, and the router's CPU for it; the router is nearly idle."""
    used_ms = await cost_ms(session, url, given(1, "long", stream=stream))
    return {
        "streamed": stream, "steps": 1, "inner_tokens": 0,
        "answer_tokens": LONG_TOKENS, "router_cpu_ms": round(used_ms, 2),
    }  # fmt: skip


def given(steps: int, worker: str, *, stream: bool = False) -> dict[str, Any]:
    """A body with a plan of its own: `steps` steps side by side, but for the last, which reads them."""
    plan = [{"worker": worker, "subtask": "Say it.", "access": []} for _ in range(steps)]
    plan[-1]["access"] = list(range(steps - 1))
    return BODY | {"stream": stream, "podium": {"plan": plan}}


async def cost_ms(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> float:
    """CPU milliseconds of the router for one such request, the mean of `COSTED`."""
    router, _ = processes(urlsplit(url).port or 80)
    room = asyncio.Semaphore(COSTED_AT_ONCE)

    async def one() -> None:
        async with room:
            await ask(session, url, body)

    before_s = cpu_s(router)
    await asyncio.gather(*(one() for _ in range(COSTED)))
    return 1000 * (cpu_s(router) - before_s) / COSTED


async def router_costs(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """CPU milliseconds of the router, by what they go into; each is a difference of two sorts of requests."""
    one, four = await cost_ms(session, url, given(1, "a")), await cost_ms(session, url, given(4, "a"))
    planned = await cost_ms(session, url, BODY)
    read = await cost_ms(session, url, given(4, "long"))
    streamed = await cost_ms(session, url, given(4, "long", stream=True))
    step, inner = (four - one) / 3, (read - four) / (4 * LONG_TOKENS)
    texts = sum(s["output_tokens"] for s in STEPS if s["token_ms"])
    written = sum(s["written_tokens"] for s in STEPS)
    return {
        "cpu_ms_per_request": round(one - step, 2), "cpu_ms_per_step": round(step, 2),
        "cpu_ms_per_plan_token": round((planned - four - texts * inner) / written, 4),
        "cpu_ms_per_inner_token": round(inner, 4),
        "cpu_ms_per_answer_token": round(inner + (streamed - read) / LONG_TOKENS, 4),
    }  # fmt: skip


def scripted_ms() -> float:
    """What the script alone takes: the third step's last word, and then the fourth step."""
    written_ms = CONDUCTOR_TOKEN_MS * (sum(step["written_tokens"] for step in STEPS[:3]) - 1)
    return written_ms + sum(
        1000 * s["first_token_s"] + s["token_ms"] * (s["output_tokens"] - 1) for s in STEPS[2:]
    )


def section(seen: list[Seen], foretold: list[dict[str, Any]], duration_s: float) -> dict[str, Any]:
    """The section `checked`."""
    rates = [
        {
            "rate_rps": each.rate_rps, "seed": each.seed, "streamed": each.streamed,
            "p50_ms": round(1000 * percentile(each.took_s, 0.5), 1),
            "p95_ms": round(1000 * percentile(each.took_s, 0.95), 1), "done_rps": round(each.done_rps, 2),
            "router_cpu_ms": round(1000 * each.router_cpu_s, 2), "proxy_cpu_ms": round(1000 * each.proxy_cpu_s, 2),
        }
        for each in seen
    ]  # fmt: skip
    return {
        "source": f"python -m loadtest.simulator.check, loadtest/simulator/scripted.yaml, {os.cpu_count()} cores, client included",
        "date": datetime.now(UTC).date(), "kind": "measured", "duration_s": duration_s,
        "conductor_token_ms": CONDUCTOR_TOKEN_MS, "steps": STEPS, "mixed": foretold, "rates": rates,
    }  # fmt: skip


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.simulator.check", description=__doc__)
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument("--rates", default="10,20,40", help="requests a second (default: %(default)s)")
    parser.add_argument("--duration-s", type=float, default=10.0, help="at each rate (default: %(default)s)")
    args = parser.parse_args()
    console = Console(stderr=True)
    try:
        rates = [float(rate) for rate in args.rates.split(",")]
        sections = asyncio.run(measure(args.url.rstrip("/"), rates, args.duration_s, console))
    except (ValueError, OSError, aiohttp.ClientError, psutil.Error) as exc:
        console.print(f"[red]could not be measured:[/] {exc}")
        return 1
    print(yaml.safe_dump(sections, sort_keys=False, width=120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
