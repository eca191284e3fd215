"""`podium siege`: every attack on both paths, from one address and several. Exit 1: a bound was missed.

`--only default:idle,fast:prompts` runs some of them; `--connections 300 --duration 5` makes them small.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.isolated import start_isolated
from bench.server import BUILD, BenchError, production_environment
from loadtest.siege.attack import EXTRA_KINDS, KINDS
from loadtest.siege.watch import STREAMS, SiegeResult, Watch
from program.process import allow_open_files, restore_interrupts

SETTINGS = Path(__file__).with_name("siege.yaml")
TOKENS_PER_S = 20
"""Of the worker `talker` in siege.yaml."""
SEVERAL = 8
NO_ATTACK = "nothing"
"""For comparison: what this machine does without an attack."""
CONCURRENT = {"headers": 4, "prompts": 5}
"""Of the attacks that are few and large."""
SETTLE_S = 3.0
"""Between attacks, so that the thousands of closed connections of one are not counted to the next."""


@dataclass(frozen=True, slots=True)
class Case:
    """An attack on one path."""

    path: str
    kind: str
    addresses: int

    @property
    def name(self) -> str:
        """As `--only` takes it, and how many addresses it comes from."""
        return f"{self.path}:{self.kind}, {self.addresses} address{'es' if self.addresses > 1 else ''}"


@asynccontextmanager
async def attack(case: Case, url: str, connections: int) -> AsyncGenerator[None]:
    """Run the attacker as a process of its own; its counts go to build/bench/siege-attack.log."""
    if case.kind == NO_ATTACK:
        yield
        return
    count = CONCURRENT.get(case.kind, connections)
    options = ["--count", str(count), "--addresses", str(case.addresses)]
    command = [sys.executable, "-m", "loadtest.siege.attack", case.kind, url, *options]
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "siege-attack.log").open("ab") as log:
        log.write(f"{case.name}\n".encode())
        log.flush()
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            yield
            if process.returncode is not None:
                raise BenchError(f"The attacker exited early; see {BUILD / 'siege-attack.log'}.")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def besiege(
    case: Case, url: str, connections: int, duration_s: float, streams: int = STREAMS
) -> SiegeResult:
    """One attack, for as long as the streams run."""
    watch = Watch(url, text(duration_s), streams)
    has_begun = asyncio.Event()
    watching = asyncio.create_task(watch.run(has_begun))
    try:
        await has_begun.wait()
        async with attack(case, url, connections):
            return await watching
    finally:
        watching.cancel()


def text(duration_s: float) -> str:
    """The answer of the worker `talker`, in which no two words are alike."""
    return " ".join(f"word-{number}" for number in range(int(duration_s * TOKENS_PER_S)))


@asynccontextmanager
async def serve(path: str, duration_s: float) -> AsyncGenerator[str]:
    """The address of a server on one path, `default` or `fast`."""
    BUILD.mkdir(parents=True, exist_ok=True)
    settings = BUILD / f"siege-{path}.yaml"
    settings.write_text(SETTINGS.read_text().replace("${TOKENS}", text(duration_s)))
    env = production_environment() if path == "fast" else {}
    async with start_isolated(f"siege-{path}", settings, env=env) as (client, _):
        yield client.url


def cases(only: Sequence[str]) -> list[Case]:
    """Those whose PATH:KIND is in `only`; where it is empty, every one that must be withstood."""
    every = [
        Case(path, kind, addresses)
        for path in ("default", "fast")
        for kind in (NO_ATTACK, *KINDS, *EXTRA_KINDS)
        for addresses in ((1,) if kind == NO_ATTACK else (1, SEVERAL))
    ]
    chosen = only or [f"{case.path}:{case.kind}" for case in every if case.kind not in EXTRA_KINDS]
    return [case for case in every if f"{case.path}:{case.kind}" in chosen]


def table(results: dict[Case, SiegeResult]) -> Table:
    """One row per attack."""
    headings = ("path", "attack", "from", "streams whole", "answered", "slowest gap", "/healthz p99", "held")
    rows = Table(*headings)
    for case, result in results.items():
        rows.add_row(
            case.path,
            case.kind.replace("_", " "),
            str(case.addresses),
            f"{result.whole} of {result.streams}",
            f"{result.answered} of {result.asked}",
            f"{result.slowest_gap_s:.2f} s",
            f"{1000 * result.health_p99_s:.0f} ms",
            "yes" if result.withstood else "[red]no[/]",
        )
    return rows


async def run(only: Sequence[str], connections: int, duration_s: float) -> int:
    """Exit status."""
    console, results = Console(soft_wrap=True), dict[Case, SiegeResult]()
    chosen = cases(only)
    for path in dict.fromkeys(case.path for case in chosen):
        console.print(f"starting the server: {path}")
        async with serve(path, duration_s) as url:
            for case in (each for each in chosen if each.path == path):
                console.print(f"{len(results) + 1} of {len(chosen)}: {case.name} ...")
                await asyncio.sleep(SETTLE_S)
                results[case] = result = await besiege(case, url, connections, duration_s)
                verdict = "held" if result.withstood else "NOT HELD"
                console.print(f"  {verdict} {'; '.join(result.lost)}", markup=False)
    console.print(table(results))
    (BUILD / "siege.json").write_text(json.dumps([_json(*each) for each in results.items()], indent=1))
    return 0 if all(result.withstood for result in results.values()) else 1


def _json(case: Case, result: SiegeResult) -> dict[str, object]:
    names = ("streams", "whole", "asked", "answered", "slowest_gap_s", "health_p99_s")
    attacked: dict[str, object] = {"path": case.path, "kind": case.kind, "addresses": case.addresses}
    return attacked | {name: getattr(result, name) for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium siege",
        description="Ordinary clients during attacks on both paths.",
        epilog="example: podium siege --only default:idle --connections 500",
    )
    parser.add_argument("--only", default="", help="such as default:idle,fast:prompts,fast:large_unfinished")
    parser.add_argument("--connections", type=int, default=5000, help="of an attack (%(default)s)")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of each attack (%(default)s)")
    read = parser.parse_args(argv)
    restore_interrupts()
    allow_open_files(STREAMS + 700)
    try:
        return asyncio.run(
            run([name for name in read.only.split(",") if name], read.connections, read.duration)
        )
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
