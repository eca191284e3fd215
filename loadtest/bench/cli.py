"""`podium bench`: measure, print the figures, and write build/bench.json.

The exit code is 1 only if a part could not be measured. `--only dag,tokens` measures some parts;
build/bench.json then holds only those.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import psutil
from rich.console import Console
from rich.table import Table
from typer import BadParameter, Option

from loadtest.bench import (
    adapters,
    autoscaling,
    dag,
    disconnects,
    engine,
    first_call,
    metering,
    passthrough,
    peers,
    schedulers,
    slow_readers,
    steps,
    streams,
    tokens,
    tool_turns,
    two_engines,
    watching,
)
from loadtest.bench.figures import Figure, to_json
from loadtest.rig import ROOT, RigError
from loadtest.rig.client import BenchClient, open_session
from loadtest.rig.fake_openai import FakeOpenAI
from loadtest.rig.ray_server import BenchServer, default_server, running
from podium.command_line.process import allow_open_files, machine, restore_interrupts
from podium.command_line.program import Program
from podium.command_line.terminal import console as open_console
from podium.command_line.terminal import progress as open_progress
from podium.command_line.terminal import table as open_table

OUTPUT = ROOT / "build" / "bench.json"
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class BenchPart:
    """One measurement: the number of progress ticks, and the function that returns its figures."""

    name: str
    ticks: int
    measure: Callable[[Tick], Awaitable[list[Figure]]]


def list_shared_parts(
    client: BenchClient, server: BenchServer, up: FakeOpenAI, say: Callable[[str], None]
) -> list[BenchPart]:
    """Return the parts that share one Serve, in running order. Parts that leave much state behind come last."""
    session, scheduled = client.session, BenchClient(client.session, f"{client.url}/schedulers")
    proxied = BenchClient(session, f"{client.url}/upstream")
    token_ticks = tokens.WARM_UP + tokens.STREAMS
    return [
        BenchPart("dag", dag.PAIRS, lambda tick: dag.measure(client, tick)),
        BenchPart("schedulers", schedulers.PLANS, lambda tick: schedulers.measure(scheduled, tick)),
        BenchPart("first_call", first_call.RUNS, lambda tick: first_call.measure(client, tick)),
        BenchPart("tokens", token_ticks, lambda tick: tokens.measure(client, proxied, up, tick)),
        BenchPart("passthrough", passthrough.ROUNDS, lambda tick: passthrough.measure(client, tick)),
        BenchPart("peer", peers.ROUNDS, lambda tick: peers.measure_litellm(session, tick)),
        BenchPart("steps", steps.ROUNDS, lambda tick: steps.measure(session, tick)),
        BenchPart("disconnects", disconnects.EACH * 3, lambda tick: disconnects.measure(proxied, up, tick)),
        BenchPart("streams", streams.STREAMS, lambda tick: streams.measure(client, server, tick, say)),
    ]


SHARED = (
    *("dag", "schedulers", "first_call", "tokens", "passthrough"),
    *("peer", "steps", "disconnects", "streams"),
)
ISOLATED = [
    BenchPart("smg", peers.ROUNDS, peers.measure_smg),
    BenchPart("slow_readers", slow_readers.READERS, slow_readers.measure),
    BenchPart("metering", metering.ROUNDS + metering.RATE_ROUNDS, metering.measure),
    BenchPart("tool_turns", tool_turns.ROUNDS, tool_turns.measure),
    BenchPart("watching", watching.ROUNDS * len(watching.WATCHERS), watching.measure),
    BenchPart("autoscaling", 150, autoscaling.measure),
    BenchPart("vllm", engine.ROUNDS * len(engine.LINES), engine.measure),
    BenchPart("two_engines", 150, two_engines.measure),
    BenchPart("adapters", 200, adapters.measure),
]
"""Parts that start their own Serve or routers, after the shared one has stopped."""
PARTS = (*SHARED, *(part.name for part in ISOLATED))


@asynccontextmanager
async def running_parts(console: Console) -> AsyncGenerator[list[BenchPart]]:
    """Start the shared Serve and yield the parts that use it."""
    up = FakeOpenAI(disconnects.script_of)
    async with up.running() as url, open_session() as session:
        server = default_server(url)
        console.print(
            "Starting Ray Serve with the router, a router with an upstream, and the baseline ingress ..."
        )
        began_s = time.monotonic()
        async with running(server):
            log = server.log.relative_to(ROOT)
            console.print(f"Ready after {time.monotonic() - began_s:.0f} s (log: {log})")
            yield list_shared_parts(BenchClient(session, server.url), server, up, console.print)


async def run(only: set[str], console: Console) -> tuple[list[Figure], list[str]]:
    """Measure the parts. Return the figures, and the reason for each part that failed."""
    figures: list[Figure] = []
    failures: list[str] = []
    if only & set(SHARED):
        async with running_parts(console) as parts:
            await _measure(parts, only, console, figures, failures)
    await _measure(ISOLATED, only, console, figures, failures)
    return figures, failures


async def _measure(
    parts: list[BenchPart], only: set[str], console: Console, figures: list[Figure], failures: list[str]
) -> None:
    with open_progress(console, transient=True) as progress:
        for part in (part for part in parts if part.name in only):
            task = progress.add_task(part.name, total=part.ticks)
            began_s = time.monotonic()
            try:
                figures += await part.measure(lambda task=task: progress.advance(task))
            except Exception as exc:  # noqa: BLE001  (the other parts still run)
                failures.append(f"{part.name}: {type(exc).__name__}: {exc}")
                progress.console.print(f"{part.name} could not be measured: {exc}")
            else:
                progress.console.print(f"{part.name} measured in {time.monotonic() - began_s:.0f} s")
                progress.remove_task(task)


def table(figures: list[Figure]) -> Table:
    rows = open_table(title=f"Podium bench, {time.strftime('%Y-%m-%d %H:%M')}, {machine()}")
    for heading in ("figure", "value", "noise", "target", "met", "meaning"):
        rows.add_column(heading, justify="right" if heading in ("value", "noise", "target") else "left")
    for each in figures:
        spec = each.spec
        target = "" if spec.target is None else f"{'≤' if spec.side == 'at most' else '≥'} {spec.target:g}"
        met = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: ""}[each.meets_target]
        noise = "" if each.low == each.high else f"{each.low:.3g} .. {each.high:.3g}"
        rows.add_row(each.name, f"{each.value:.4g}", noise, target, met, spec.meaning)
    return rows


def summarise(figures: list[Figure], failures: list[str], took_s: float, console: Console) -> None:
    """Print the table, the missed targets and the failed parts."""
    console.print(table(figures))
    missed = [each.name for each in figures if each.meets_target is False]
    met = sum(each.meets_target is True for each in figures)
    console.print(
        f"Measured {len(figures)} figures in {took_s:.0f} s and wrote them to {OUTPUT.relative_to(ROOT)}."
    )
    console.print(f"Targets met: {met}. Targets missed: {len(missed)}.")
    if missed:
        console.print(f"[bold red]Targets missed:[/] {', '.join(missed)}")
    for failure in failures:
        console.print(f"[bold red]Not measured:[/] {failure}")


main = Program("podium bench")


@main.command(epilog=f"Parts: {', '.join(PARTS)}\n\nExample: podium bench --only dag,steps")
def measure(
    only: Annotated[str, Option(help="parts to measure, separated by commas", show_default="all")] = ",".join(
        PARTS
    ),
) -> int:
    """Measure Podium on this machine, and compare the figures with their targets.

    Raises:
        BadParameter: a part does not exist.
    """
    parts = set(only.split(","))
    if unknown := parts - set(PARTS):
        raise BadParameter(
            f"unknown part {min(unknown)!r}. Choose from {', '.join(PARTS)}.", param_hint="--only"
        )
    console = open_console(markup=True)
    restore_interrupts()
    allow_open_files()
    with contextlib.suppress(FileNotFoundError):
        OUTPUT.unlink()
    busy = psutil.getloadavg()[0] / (os.cpu_count() or 1)
    if busy > 0.5:
        console.print(
            f"[yellow]This machine is busy (load {busy:.1f} per core). Check the noise column of the results.[/]"
        )
    began_s = time.monotonic()
    try:
        figures, failures = asyncio.run(run(parts, console))
    except RigError as exc:
        figures, failures = [], [str(exc)]
    except KeyboardInterrupt:
        console.print("Stopped. No process is left running, and no results were written.")
        return 130
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(to_json(figures), indent=2) + "\n")
    summarise(figures, failures, time.monotonic() - began_s, console)
    return 1 if failures else 0
