"""`podium bench`: measure, show, write `build/bench.json`. Exit 1 only where something could not be measured.

`--only dag,tokens` measures some of it; build/bench.json then holds only that.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.bench import (
    adapters,
    autoscaling,
    dag,
    disconnects,
    engine,
    first_call,
    passthrough,
    peer,
    replicas,
    schedulers,
    steps,
    streams,
    tokens,
    two_engines,
    upstream,
)
from loadtest.bench.alone import session
from loadtest.bench.client import Client
from loadtest.bench.figures import Figure, flat
from loadtest.bench.server import ROOT, BenchError, Server, default, entered

OUTPUT = ROOT / "build" / "bench.json"


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement of its own: how many ticks it gives while it goes on, and what makes its figures."""

    name: str
    ticks: int
    measure: Callable[[Callable[[], None]], Awaitable[list[Figure]]]


def parts(
    client: Client, served: Client, server: Server, up: upstream.Upstream, say: Callable[[str], None]
) -> list[Part]:
    """All of it, in the order in which it is measured: those that leave much behind come last."""
    return [
        Part("dag", dag.PAIRS, lambda tick: dag.measure(client, tick)),
        Part("schedulers", schedulers.PLANS,
             lambda tick: schedulers.measure(Client(client.session, f"{server.url}/schedulers"), tick)),
        Part("first_call", first_call.RUNS, lambda tick: first_call.measure(client, tick)),
        Part(
            "tokens", tokens.WARM_UP + tokens.STREAMS, lambda tick: tokens.measure(client, served, up, tick)
        ),
        Part("passthrough", passthrough.ROUNDS, lambda tick: passthrough.measure(client, tick)),
        Part("peer", peer.ROUNDS, lambda tick: peer.measure(client.session, tick, say)),
        Part("steps", steps.ROUNDS, lambda tick: steps.measure(client.session, tick)),
        Part("disconnects", disconnects.EACH * 3, lambda tick: disconnects.measure(served, up, tick)),
        Part("streams", streams.STREAMS, lambda tick: streams.measure(client, server, tick, say)),
    ]  # fmt: skip


ALONE = [
    Part("replicas", replicas.ROUNDS * len(replicas.REPLICAS), replicas.measure),
    Part("autoscaling", 150, autoscaling.measure),
    Part("vllm", engine.ROUNDS * len(engine.LINES), engine.measure),
    Part("two_engines", 150, two_engines.measure),
    Part("adapters", 200, adapters.measure),
]
"""Each starts a Serve of its own, when the shared one is gone."""
SHARED = (
    "dag",
    "schedulers",
    "first_call",
    "tokens",
    "passthrough",
    "peer",
    "steps",
    "disconnects",
    "streams",
)
PARTS = (*SHARED, *(part.name for part in ALONE))


@asynccontextmanager
async def ready(console: Console) -> AsyncIterator[list[Part]]:
    """Everything that is measured, running; the parts that measure it."""
    async with upstream.serving() as up:
        server = default(up.url)
        console.print(
            "Starting Ray Serve: the router, the router over an upstream of ours, a bare ingress ..."
        )
        began_s = time.monotonic()
        async with entered(server):
            console.print(
                f"ready after {time.monotonic() - began_s:.0f} s (log: {server.log.relative_to(ROOT)})"
            )
            async with session() as made:
                client, served = Client(made, server.url), Client(made, f"{server.url}/upstream")
                yield parts(client, served, server, up, console.print)


async def run(only: set[str], console: Console) -> tuple[list[Figure], list[str]]:
    """The figures that could be measured, and why others could not."""
    figures: list[Figure] = []
    failures: list[str] = []
    if only & set(SHARED):
        async with ready(console) as shared:
            await _measure(shared, only, console, figures, failures)
    await _measure(ALONE, only, console, figures, failures)
    return figures, failures


async def _measure(
    every: list[Part], only: set[str], console: Console, figures: list[Figure], failures: list[str]
) -> None:
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for part in (part for part in every if part.name in only):
            task = progress.add_task(part.name, total=part.ticks)
            began_s = time.monotonic()
            try:
                measured = await part.measure(lambda task=task: progress.advance(task))
            except Exception as exc:  # noqa: BLE001  (a fault of one part must not cost the figures of the others)
                failures.append(f"{part.name}: {type(exc).__name__}: {exc}")
                progress.console.print(f"{part.name} could not be measured: {exc}")
                continue
            figures += measured
            progress.console.print(f"{part.name} measured in {time.monotonic() - began_s:.0f} s")
            progress.remove_task(task)


def table(figures: list[Figure]) -> Table:
    """Figure, value, noise, target, met."""
    drawn = Table(
        title=f"Podium bench, {time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores, {platform.machine()}"
    )
    for heading in ("figure", "value", "noise", "target", "met", "what"):
        drawn.add_column(heading, justify="right" if heading in ("value", "noise", "target") else "left")
    for each in figures:
        known = each.known
        target = "" if known.target is None else f"{'≤' if known.side == 'at most' else '≥'} {known.target:g}"
        met = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: ""}[each.met]
        noise = "" if each.low == each.high else f"{each.low:.3g} .. {each.high:.3g}"
        drawn.add_row(each.name, f"{each.value:.4g}", noise, target, met, known.meaning)
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="podium bench", description="Measure Podium on this machine.")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    only = set(parser.parse_args(arguments).only.split(","))
    if unknown := only - set(PARTS):
        parser.error(f"no part is called {min(unknown)!r}; there are: {', '.join(PARTS)}")
    console = Console(width=None if sys.stdout.isatty() else 180)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a thousand streams are as many sockets
    with contextlib.suppress(FileNotFoundError):
        OUTPUT.unlink()
    busy = psutil.getloadavg()[0] / (os.cpu_count() or 1)
    if busy > 0.5:
        console.print(f"[yellow]This machine is busy (load {busy:.1f} per core): read the noise.[/]")
    began_s = time.monotonic()
    try:
        figures, failures = asyncio.run(run(only, console))
    except BenchError as exc:
        figures, failures = [], [str(exc)]
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running, and nothing was written.")
        return 130
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(flat(figures), indent=2) + "\n")
    console.print(table(figures))
    missed = [each.name for each in figures if each.met is False]
    kept = [each.name for each in figures if each.met]
    took_s = time.monotonic() - began_s
    console.print(f"{len(figures)} figures in {took_s:.0f} s; written to {OUTPUT.relative_to(ROOT)}")
    console.print(f"{len(kept)} targets met, {len(missed)} not.")
    if missed:
        console.print(f"[bold red]Not met:[/] {', '.join(missed)}")
    for failure in failures:
        console.print(f"[bold red]Not measured:[/] {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    sys.exit(main())
