"""`podium siege`: run every attack on every path. The exit code is 1 if a limit was exceeded.

A path is a way to the server: through HAProxy, through Serve's own proxy, or past HAProxy to a router's port. `--only
serve:idle,haproxy:prompts` runs some of the attacks. `--scale 0.05 --duration 5` makes them small.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import urlsplit

import psutil
from typer import Option

from loadtest.rig import RigError
from loadtest.rig.processes import BUILD, memory_bytes
from loadtest.siege.attack import Orders
from loadtest.siege.attack_kinds import EXTRA_KINDS, KINDS
from loadtest.siege.servers import PATHS, AttackTarget, serve, text
from loadtest.siege.watch import LOOK_EVERY_S, MOST_GROWTH, STREAMS, Memory, OrdinaryClients, SiegeResult
from podium.command_line import terminal
from podium.command_line.process import allow_open_files, machine, restore_interrupts
from podium.command_line.program import CommandError, Program, UsageError

NO_ATTACK = "nothing"
"""Name of the control case, in which the ordinary clients run without an attack."""
PREPARED_WITHIN_S = 120.0
SETTLE_S = 3.0
"""Seconds between two attacks, so that connections that one of them closed do not affect the next."""
MEMORY_BACK_WITHIN_S = 60.0
CLEANED_UP_WITHIN_S = 30.0
"""Seconds that an attacker has to clean up before it is killed."""
MOST_MEMORY_BYTES = 4_500_000_000
"""Memory limit of the server. If it is exceeded, the attack is stopped to protect the machine."""


@dataclass(frozen=True, slots=True)
class Case:
    path: str
    kind: str
    addresses: int

    @property
    def name(self) -> str:
        """Name as in `--only`, followed by the number of source addresses."""
        return f"{self.path}:{self.kind}, {self.addresses} address{'es' if self.addresses > 1 else ''}"


@dataclass
class Attacker:
    """Running attacker process. The process is None in the control case."""

    process: asyncio.subprocess.Process | None
    counts: dict[str, Any] = field(default_factory=dict[str, Any])

    def begin(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(b"\n")

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def end(self) -> None:
        """Let the attacker clean up, for example unlock the store, and wait until it ends."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), CLEANED_UP_WITHIN_S)
        self.kill()
        await self.process.wait()

    async def read(self) -> None:
        """Read the attacker's counters until it ends."""
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.counts = json.loads(line)


@asynccontextmanager
async def attacker(case: Case, target: AttackTarget, count: int) -> AsyncGenerator[Attacker]:
    """Run an attacker, prepared, while the block runs. Its errors go to build/bench/siege-attack.log."""
    if case.kind == NO_ATTACK:
        yield Attacker(None)
        return
    parts = urlsplit(target.url)
    orders = Orders(
        case.kind, parts.hostname or "127.0.0.1", parts.port or 80, count, case.addresses,
        target.keys, target.store, target.upstream_port,
    )  # fmt: skip
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "siege-attack.log").open("ab") as log:
        log.write(f"{case.name}\n".encode())
        log.flush()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.siege.attacker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(asdict(orders)).encode() + b"\n")
            async with asyncio.timeout(PREPARED_WITHIN_S):
                if await process.stdout.readline() != b"ready\n":
                    raise RigError(f"The attacker exited early. See {BUILD / 'siege-attack.log'}.")
            running = Attacker(process)
            reading = asyncio.create_task(running.read())
            yield running
            await running.end()
            reading.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def besiege(
    case: Case,
    target: AttackTarget,
    count: int,
    duration_s: float,
    streams: int = STREAMS,
    back_within_s: float = MEMORY_BACK_WITHIN_S,
) -> SiegeResult:
    """Attack while the ordinary clients read streams, then wait until the server's memory recovers.

    If the memory does not recover, attack again without ordinary clients. Memory that the allocator kept is
    reused in that round, while a leak grows further.
    """
    processes = target.find_processes()
    before = peak = memory_bytes(processes)
    breaches = list[str]()
    async with attacker(case, target, count) as running:

        def look() -> None:
            nonlocal peak
            peak = max(peak, now := memory_bytes(processes))
            if now > MOST_MEMORY_BYTES and not breaches:
                breaches.append(f"The attack was stopped because the server used {now / 1e9:.1f} GB.")
                running.kill()

        watch = OrdinaryClients(target.url, text(duration_s), streams, target.keys.get("ordinary", ""), look)
        has_begun = asyncio.Event()
        watching = asyncio.create_task(watch.run(has_begun))
        try:
            await has_begun.wait()
            running.begin()
            result = await watching
            if running.process is not None and running.process.returncode is not None and not breaches:
                raise RigError(f"The attacker exited early. See {BUILD / 'siege-attack.log'}.")
        finally:
            watching.cancel()
        counts = running.counts
    after = await _memory_after(processes, before, back_within_s)
    if not all(process.is_running() for process in processes):
        breaches.append("A server process ended during the attack.")
    again = after
    if after > MOST_GROWTH * before and not breaches:
        async with attacker(case, target, count) as running:
            running.begin()
            ends_s = time.monotonic() + duration_s
            while time.monotonic() < ends_s and memory_bytes(processes) <= MOST_MEMORY_BYTES:
                await asyncio.sleep(LOOK_EVERY_S)
        again = await _memory_after(processes, after, back_within_s)
    memory = Memory(before / 1e6, peak / 1e6, after / 1e6, again / 1e6)
    breaches += counts.get("breaches", ())
    return replace(result, memory=memory, breaches=tuple(breaches), attacked=counts)


async def _memory_after(processes: Sequence[psutil.Process], before: int, within_s: float) -> int:
    """Return the memory once it has recovered, or after `within_s`."""
    ends_s = time.monotonic() + within_s
    while (after := memory_bytes(processes)) > MOST_GROWTH * before and time.monotonic() < ends_s:
        await asyncio.sleep(1)
    return after


def cases(only: Sequence[str], paths: Sequence[str] = PATHS) -> list[Case]:
    """Return the cases whose PATH:KIND is in `only`, or all on `paths` that the server must withstand."""
    addresses = {NO_ATTACK: (1,)} | {name: row.addresses for name, row in (KINDS | EXTRA_KINDS).items()}
    every = [Case(path, kind, each) for path in PATHS for kind in addresses for each in addresses[kind]]
    if only:
        return [case for case in every if f"{case.path}:{case.kind}" in only]
    return [case for case in every if case.kind not in EXTRA_KINDS and case.path in paths]


HEADINGS = (
    *("path", "attack", "addresses", "complete streams", "answered", "longest pause", "slowest chat"),
    *("/healthz p99", "memory before, peak, after, after a second round", "passed"),
)


def table(results: dict[Case, SiegeResult]) -> str:
    """Render the results as a Markdown table with one row per attack."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    for case, result in results.items():
        memory = result.memory
        cells = (
            case.path,
            case.kind.replace("_", " "),
            str(case.addresses),
            f"{result.whole} of {result.streams}",
            f"{result.answered} of {result.n_requests}",
            f"{result.slowest_gap_s:.2f} s",
            f"{result.worst_chat_s:.2f} s",
            f"{1000 * result.health_p99_s:.0f} ms",
            f"{memory.before_mb:.0f}, {memory.peak_mb:.0f}, {memory.after_mb:.0f}, {memory.again_mb:.0f} MB",
            "yes" if result.withstood else "no: " + "; ".join(result.missed),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class Servers:
    """Servers of the paths, one at a time. One that exceeded a limit is replaced for the next row."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s, self._stack, self._path = duration_s, AsyncExitStack(), ""
        self._target: AttackTarget | None = None

    async def target(self, path: str) -> AttackTarget:
        """Return the running server of `path`, starting it if needed."""
        if self._target is None or self._path != path:
            await self.stop()
            self._path = path
            self._target = await self._stack.enter_async_context(serve(path, self._duration_s))
        return self._target

    async def stop(self) -> None:
        self._target = None
        await self._stack.aclose()


async def run(chosen: Sequence[Case], scale: float, duration_s: float) -> int:
    """Run the cases and return the exit code."""
    console, results = terminal.console(), dict[Case, SiegeResult]()
    servers = Servers(duration_s)
    try:
        for case in chosen:
            console.print(f"{len(results) + 1} of {len(chosen)}: {case.name} ...", markup=False)
            target = await servers.target(case.path)
            await asyncio.sleep(SETTLE_S)
            count = 0 if case.kind == NO_ATTACK else (KINDS | EXTRA_KINDS)[case.kind].count
            results[case] = result = await besiege(case, target, max(1, round(count * scale)), duration_s)
            reasons = "; ".join([*result.missed, *result.lost])
            console.print(f"  {'passed' if result.withstood else 'FAILED'} {reasons}", markup=False)
            save(results, scale, duration_s)
            if not result.withstood:
                await servers.stop()
    finally:
        await servers.stop()
    print(table(results))
    return 0 if all(result.withstood for result in results.values()) else 1


def save(results: dict[Case, SiegeResult], scale: float, duration_s: float) -> None:
    """Write build/bench/siege.json and siege.md."""
    rows = [asdict(case) | asdict(result) | {"missed": result.missed} for case, result in results.items()]
    report = {"machine": machine(), "scale": scale, "duration_s": duration_s, "rows": rows}
    (BUILD / "siege.json").write_text(json.dumps(report, indent=1))
    (BUILD / "siege.md").write_text(table(results) + "\n")


main = Program("podium siege")


@main.command(epilog="Example: podium siege --only serve:idle --scale 0.1")
def besiege_all(
    only: Annotated[
        str,
        Option(
            help="attacks to run, as PATH:ATTACK separated by commas, such as serve:idle,haproxy:prompts",
            show_default=False,
        ),
    ] = "",
    paths: Annotated[str, Option(help="paths on which to run all attacks")] = ",".join(PATHS),
    scale: Annotated[float, Option(help="factor for the number of connections of each attack")] = 1.0,
    duration: Annotated[float, Option(help="duration of each attack in seconds")] = 30.0,
) -> int:
    """Attack a server on every path while ordinary clients use it.

    Raises:
        UsageError: a path is unknown, or no attack matches.
        CommandError: a server or an attacker failed.
    """
    attacks, on = ([name for name in words.split(",") if name] for words in (only, paths))
    if unknown := next((path for path in on if path not in PATHS), None):
        raise UsageError(f"--paths: unknown path {unknown!r}. Use one or more of {', '.join(PATHS)}.")
    chosen = cases(attacks, on)
    if not chosen:
        raise UsageError(
            f"--only matches no attack. Use PATH:ATTACK with one of the attacks {', '.join([NO_ATTACK, *KINDS, *EXTRA_KINDS])}."
        )
    restore_interrupts()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops the servers too
    allow_open_files(STREAMS + 700)
    try:
        return asyncio.run(run(chosen, scale, duration))
    except RigError as error:
        raise CommandError(str(error)) from error
