"""`python -m loadtest.capacity.calibrate --url ...`: measure a scripted server and print sections of
`inputs.yaml`.

The server must be `podium serve --settings loadtest/capacity/scripted.yaml` on this machine, behind HAProxy
as deployed (the default). `STEPS` in this module repeats the server's script and timing. CPU times are read
from the processes behind the URL's port. The section `router` is fitted to five kinds of requests. The
section `checked` is for validation: it has other requests, streamed and not, and Poisson arrivals at several
rates, which the simulation repeats.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import psutil
import yaml
from rich.console import Console
from typer import Option

from loadtest import percentile
from loadtest.capacity.arrivals import poisson
from loadtest.capacity.validation import steady_rate
from loadtest.rig import Json, RigError
from loadtest.rig.client import CHAT, BenchClient, chat, open_session, step
from loadtest.rig.processes import cpu_s
from podium.command_line.options import parse_rates, parse_url
from podium.command_line.program import CommandError, Program
from podium.command_line.terminal import console

BODY = chat("podium-mini")
REQUESTS, CONCURRENT = 48, 8
"""Number of requests of each kind for measuring the router's mean CPU time, and how many run concurrently."""
CONDUCTOR_TOKEN_MS = 5.0
SHORT = {"written_tokens": 50, "first_token_s": 0.3, "output_tokens": 1, "token_ms": 0}
SENTENCE = {"written_tokens": 50, "first_token_s": 0.3, "output_tokens": 16, "token_ms": 10}
STEPS: list[Json] = [
    {"worker": "a", **SHORT},
    {"worker": "b", **SHORT},
    {"worker": "c", **SENTENCE},
    {"worker": "c", "reads": [0, 1, 2], **SENTENCE},
]
"""Plan of the conductor in scripted.yaml, with token counts in words, and the times of its workers."""
LONG_TOKENS = 200
"""Number of words in an answer of the worker `long`."""


def find_processes(port: int) -> tuple[psutil.Process, psutil.Process]:
    """Return the router replica and the proxy behind `port`. Raise ValueError if they do not run here."""
    sockets: Any = psutil.net_connections("tcp")
    pids = {s.pid for s in sockets if s.status == psutil.CONN_LISTEN and s.laddr.port == port}
    fronts = sorted((psutil.Process(pid) for pid in pids if pid), key=lambda front: front.create_time())
    if not fronts or fronts[-1].pid == os.getpid():
        raise ValueError(
            f"no process on this machine listens on port {port}. Start the server on this machine."
        )
    proxy = fronts[-1]
    # HAProxy's parent is an actor, whose parent is the raylet; Serve's own proxy is an actor itself.
    for parent in proxy.parents():
        for process in parent.children(recursive=True):
            if "ServeReplica" in (command := "".join(process.cmdline())) and "router" in command:
                return process, proxy
    raise ValueError(f"the proxy on port {port} has no router replica.")


@dataclass(frozen=True, slots=True)
class Probe:
    """Client of the server that also knows the server's router process and proxy process."""

    client: BenchClient
    router: psutil.Process
    proxy: psutil.Process

    async def ask(self, body: Json = BODY) -> float:
        """Return the seconds that the answer to a request took. Raise RigError unless its status is 200."""
        began_s = time.monotonic()
        await self.client.post(CHAT, body)
        return time.monotonic() - began_s

    async def sample_rate(self, rate_rps: float, duration_s: float, seed: int, *, streamed: bool) -> Json:
        """Send requests at Poisson times, without waiting for earlier answers. Return an entry of `rates`."""
        arrivals = poisson(rate_rps, duration_s, np.random.default_rng(seed))
        processes = (self.router, self.proxy)
        before = [cpu_s([process]) for process in processes]
        began_s = time.monotonic()
        ends_s: list[float] = []

        async def ask_at(at_s: float) -> float:
            await asyncio.sleep(began_s + at_s - time.monotonic())
            time_s = await self.ask(BODY | {"stream": streamed})
            ends_s.append(time.monotonic() - began_s)
            return time_s

        times_s = await asyncio.gather(*(ask_at(float(at_s)) for at_s in arrivals))
        cpu_ms = [1000 * (cpu_s([p]) - was) / len(times_s) for p, was in zip(processes, before, strict=True)]
        return {
            "rate_rps": rate_rps,
            "seed": seed,
            "streamed": streamed,
            "p50_ms": round(1000 * percentile(times_s, 50), 1),
            "p95_ms": round(1000 * percentile(times_s, 95), 1),
            "done_rps": round(steady_rate(ends_s, duration_s), 2),
            "router_cpu_ms": round(cpu_ms[0], 2),
            "proxy_cpu_ms": round(cpu_ms[1], 2),
        }

    async def cost_ms(self, body: Json) -> float:
        """Send `REQUESTS` requests, and return the router's mean CPU milliseconds per request."""
        slots = asyncio.Semaphore(CONCURRENT)

        async def ask() -> None:
            async with slots:
                await self.ask(body)

        before_s = cpu_s([self.router])
        await asyncio.gather(*(ask() for _ in range(REQUESTS)))
        return 1000 * (cpu_s([self.router]) - before_s) / REQUESTS


async def measure(server: str, rates: Sequence[float], duration_s: float, console: Console) -> Json:
    """Measure all that the sections need: costs, requests for validation, arrival rates and HTTP overhead."""
    async with open_session() as session:
        probe = Probe(BenchClient(session, server), *find_processes(urlsplit(server).port or 80))
        times_s = [await probe.ask() for _ in range(8)][3:]
        costs = await router_costs(probe)
        console.print(f"router: {costs}")
        mixed = [await measure_long_step(probe, stream=stream) for stream in (False, True)]
        console.print(f"to predict: {mixed}")
        samples: list[Json] = []
        for number, rate_rps in enumerate(rates):
            for streamed in (False, True):
                sample = await probe.sample_rate(rate_rps, duration_s, number + 1, streamed=streamed)
                samples.append(sample)
                console.print(f"rate: {sample}")
    http_ms = round(1000 * percentile(times_s, 50) - script_ms(), 1)
    return {"router": costs, "checked": section(samples, mixed, duration_s) | {"http_added_ms": http_ms}}


async def measure_long_step(probe: Probe, *, stream: bool) -> Json:
    """Measure the CPU time of one step of many words while nearly idle. No cost is fitted to it."""
    cost_ms = await probe.cost_ms(body_with_plan(1, "long", stream=stream))
    tokens = {"inner_tokens": 0, "answer_tokens": LONG_TOKENS}
    return {"streamed": stream, "steps": 1, **tokens, "router_cpu_ms": round(cost_ms, 2)}


def body_with_plan(steps: int, worker: str, *, stream: bool = False) -> Json:
    """Return a request with its own plan: parallel steps, and a last one that reads them."""
    plan = [*(step(worker) for _ in range(steps - 1)), step(worker, *range(steps - 1))]
    return BODY | {"stream": stream, "podium": {"plan": plan}}


async def router_costs(probe: Probe) -> dict[str, float]:
    """Compute the router's CPU milliseconds by cause, as differences between two kinds of requests."""
    one, four = await probe.cost_ms(body_with_plan(1, "a")), await probe.cost_ms(body_with_plan(4, "a"))
    planned = await probe.cost_ms(BODY)
    read = await probe.cost_ms(body_with_plan(4, "long"))
    streamed = await probe.cost_ms(body_with_plan(4, "long", stream=True))
    step, inner = (four - one) / 3, (read - four) / (4 * LONG_TOKENS)
    texts = sum(s["output_tokens"] for s in STEPS if s["token_ms"])
    plan_tokens = sum(s["written_tokens"] for s in STEPS)
    return {
        "cpu_ms_per_request": round(one - step, 2),
        "cpu_ms_per_step": round(step, 2),
        "cpu_ms_per_plan_token": round((planned - four - texts * inner) / plan_tokens, 4),
        "cpu_ms_per_inner_token": round(inner, 4),
        "cpu_ms_per_answer_token": round(inner + (streamed - read) / LONG_TOKENS, 4),
    }


def script_ms() -> float:
    """Return the script's own milliseconds: until its third step is written, plus steps three and four."""
    written_ms = CONDUCTOR_TOKEN_MS * (sum(step["written_tokens"] for step in STEPS[:3]) - 1)
    steps_ms = (1000 * s["first_token_s"] + s["token_ms"] * (s["output_tokens"] - 1) for s in STEPS[2:])
    return written_ms + sum(steps_ms)


def section(samples: list[Json], mixed: list[Json], duration_s: float) -> Json:
    source = "python -m loadtest.capacity.calibrate, loadtest/capacity/scripted.yaml"
    return {
        "source": f"{source}, {os.cpu_count()} cores, client included",
        "date": datetime.now(UTC).date(),
        "kind": "measured",
        "duration_s": duration_s,
        "conductor_token_ms": CONDUCTOR_TOKEN_MS,
        "steps": STEPS,
        "mixed": mixed,
        "rates": samples,
    }


main = Program("python -m loadtest.capacity.calibrate")


@main.command(help=__doc__)
def run(
    url: Annotated[str, Option(parser=parse_url, help="address of the server")],
    rates: Annotated[
        Sequence[float], Option(parser=parse_rates, help="requests per second", show_default="10,20,40")
    ] = (10.0, 20.0, 40.0),
    duration_s: Annotated[float, Option(help="seconds at each rate")] = 10.0,
) -> int:
    try:
        sections = asyncio.run(measure(url, rates, duration_s, console(errors=True)))
    except (RigError, ValueError, OSError, aiohttp.ClientError, psutil.Error) as exc:
        raise CommandError(f"The measurement failed: {exc}") from exc
    print(yaml.safe_dump(sections, sort_keys=False, width=120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
