"""`podium siege`: every attack against both paths, from one address and from several. Exit 1 where a bound is missed.

`--only default:idle,fast:prompts` runs some of it; `--connections 300 --duration 5` makes it small.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from loadtest.bench.alone import alone
from loadtest.bench.server import BUILD, HERE, BenchError, production
from loadtest.siege.attack import EXTRA_KINDS, KINDS, allow_files
from loadtest.siege.watch import STREAMS, Result, Watch

SETTINGS = HERE.parent / "siege" / "siege.yaml"
TOKENS_PER_S = 20
"""Of the worker `talker` in siege.yaml."""
SEVERAL = 8
NOTHING = "nothing"
"""No attack: what this machine gives by itself, beside which the rest is to be read."""
AT_ONCE = {"headers": 4, "prompts": 5}
"""Of the attacks that are few and large."""
SETTLE_S = 3.0
"""Between two attacks: the thousands of closed connections of the one before are not to be counted to the next."""


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
async def attacking(case: Case, url: str, connections: int) -> AsyncIterator[None]:
    """The attacker runs as a process of its own; what it counted goes to build/bench/siege-attack.log."""
    if case.kind == NOTHING:
        yield
        return
    count = AT_ONCE.get(case.kind, connections)
    command = [
        "-m",
        "loadtest.siege.attack",
        case.kind,
        url,
        "--count",
        str(count),
        "--addresses",
        str(case.addresses),
    ]
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "siege-attack.log").open("ab") as log:
        log.write(f"{case.name}\n".encode())
        log.flush()
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=log, stderr=log)
        try:
            yield
            if process.returncode is not None:
                raise BenchError(f"The attacker ended by itself; see {BUILD / 'siege-attack.log'}.")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def besiege(
    case: Case, url: str, connections: int, duration_s: float, streams: int = STREAMS
) -> Result:
    """One attack, for as long as the streams run."""
    watch = Watch(url, text(duration_s), streams)
    begun = asyncio.Event()
    watching = asyncio.create_task(watch.run(begun))
    try:
        await begun.wait()
        async with attacking(case, url, connections):
            return await watching
    finally:
        watching.cancel()


def text(duration_s: float) -> str:
    """The answer of the worker `talker`: no two of its words are alike."""
    return " ".join(f"word-{number}" for number in range(int(duration_s * TOKENS_PER_S)))


@asynccontextmanager
async def serving(path: str, duration_s: float) -> AsyncIterator[str]:
    """The address of a server on one path, `default` or `fast`."""
    BUILD.mkdir(parents=True, exist_ok=True)
    settings = BUILD / f"siege-{path}.yaml"
    settings.write_text(SETTINGS.read_text().replace("${TOKENS}", text(duration_s)))
    env = production() if path == "fast" else {}
    async with alone(f"siege-{path}", settings, env=env) as (client, _):
        yield client.url


def cases(only: Sequence[str]) -> list[Case]:
    """Those whose PATH:KIND is named; where none is, every one that must be held."""
    every = [
        Case(path, kind, addresses)
        for path in ("default", "fast")
        for kind in (NOTHING, *KINDS, *EXTRA_KINDS)
        for addresses in ((1,) if kind == NOTHING else (1, SEVERAL))
    ]
    chosen = only or [f"{case.path}:{case.kind}" for case in every if case.kind not in EXTRA_KINDS]
    return [case for case in every if f"{case.path}:{case.kind}" in chosen]


def table(results: dict[Case, Result]) -> Table:
    """For a person."""
    drawn = Table(
        "path", "attack", "from", "streams whole", "answered", "slowest gap", "/healthz p99", "held"
    )
    for case, result in results.items():
        drawn.add_row(
            case.path, case.kind.replace("_", " "), str(case.addresses), f"{result.whole} of {result.streams}",
            f"{result.answered} of {result.asked}", f"{result.slowest_gap_s:.2f} s", f"{1000 * result.health_p99_s:.0f} ms",
            "yes" if result.held else "[red]no[/]",
        )  # fmt: skip
    return drawn


async def run(only: Sequence[str], connections: int, duration_s: float) -> int:
    """Exit status."""
    console, results = Console(soft_wrap=True), dict[Case, Result]()
    chosen = cases(only)
    for path in dict.fromkeys(case.path for case in chosen):
        console.print(f"starting the server: {path}")
        async with serving(path, duration_s) as url:
            for case in (each for each in chosen if each.path == path):
                console.print(f"{len(results) + 1} of {len(chosen)}: {case.name} ...")
                await asyncio.sleep(SETTLE_S)
                results[case] = result = await besiege(case, url, connections, duration_s)
                console.print(
                    f"  {'held' if result.held else 'NOT HELD'} {'; '.join(result.lost)}", markup=False
                )
    console.print(table(results))
    figures = [
        {"path": c.path, "kind": c.kind, "addresses": c.addresses, **_json(r)} for c, r in results.items()
    ]
    (BUILD / "siege.json").write_text(json.dumps(figures, indent=1))
    return 0 if all(result.held for result in results.values()) else 1


def _json(result: Result) -> dict[str, object]:
    names = ("streams", "whole", "asked", "answered", "slowest_gap_s", "health_p99_s")
    return {name: getattr(result, name) for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="podium siege", description=__doc__)
    parser.add_argument("--only", default="", help="such as default:idle,fast:prompts,fast:large_unfinished")
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--duration", type=float, default=30.0, help="seconds that each attack lasts")
    given = parser.parse_args(arguments)
    allow_files(STREAMS + 500)
    try:
        return asyncio.run(
            run([name for name in given.only.split(",") if name], given.connections, given.duration)
        )
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
