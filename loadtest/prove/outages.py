"""`podium prove outages`: inject faults of a database and a machine under load.

PostgreSQL stops and restarts, a disk is full, the clock is moved, and a migration is killed. There is one row
per fault, with the outcomes of requests meanwhile, and how many complete answers are missing from the ledger
or have no record. The exit code is 1 if anything acknowledged is lost or the ledger does not add up.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import BadParameter, Option

from loadtest.prove.audit import Audit, audit, count_lost_records, wait_until_settled
from loadtest.prove.migration import kill_migrations
from loadtest.prove.proof import cells, conclude
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.closed_loop import ClosedLoopResult, run_clients
from loadtest.rig.databases import KINDS, Postgres, empty_database, running_postgres
from loadtest.rig.faults import clock_moved, full, small_disk, stop_postgres
from loadtest.rig.routers import PRICE, RouterProcess, make_key, prepare_process, running_routers, scripted
from podium.command_line.options import parse_count, parse_seconds
from podium.command_line.program import Program
from serving.accounts.hold import team_subject
from serving.database.address import Address, sqlite_address
from serving.database.migrate import open_database

TEXT = " ".join(f"word{n}" for n in range(20))
WORKER = scripted("steady", TEXT, delay_s=0.05, price=PRICE, max_output_tokens=40)
HOUR_S = 3600.0
ROUTERS = 2
MODES = ("refuse", "serve")
SCENARIOS = ("stop", "disk", "clock", "migration")


@dataclass(frozen=True)
class Options:
    """Options of the proof: the duration of each phase in seconds, and the number of clients."""

    quiet_s: float
    fault_s: float
    clients: int


@dataclass(frozen=True)
class OutageRow:
    fault: str
    answers: ClosedLoopResult
    no_record: int
    audit: Audit

    @property
    def is_right(self) -> bool:
        """True if nothing was lost."""
        return self.audit.is_right and not self.no_record


Fault = Callable[[Sequence[RouterProcess]], AbstractAsyncContextManager[None]]


async def under_load(
    what: str, address: Address, when_away: str, options: Options, fault: Fault, clock: Path | None = None
) -> OutageRow:
    """Load two routers over the empty database at `address` before, during and after `fault`.

    `what` names the fault in the table. `clock` is the file with the shift of the routers' clocks.
    """
    settings: Json = {"workers": [WORKER], "store": {"when_away": when_away}, "limits": {"first_byte_s": 1.0}}
    name = what.replace(" ", "-").replace(",", "")
    async with await open_database(address) as database:
        key = await make_key(address)
        async with (
            running_routers(name, address, settings, ROUTERS, clock) as routers,
            open_session(key.headers) as session,
        ):
            async with run_clients(session, routers, "steady", options.clients) as outcomes:
                await asyncio.sleep(options.quiet_s)
                async with fault(routers):
                    pass
                await _until_answers_come(outcomes, options.quiet_s)
            await wait_until_settled(database)
        result = await audit(database, team_subject(key.team_id), 2**62, outcomes.complete_answers)
        no_record = await count_lost_records(database, outcomes.complete_answers)
    return OutageRow(what, outcomes, no_record, result)


async def _until_answers_come(outcomes: ClosedLoopResult, for_s: float) -> None:
    """Wait until clients get answers again, and then for another `for_s` seconds."""
    before = len(outcomes.complete_answers)
    async with asyncio.timeout(60):
        while len(outcomes.complete_answers) < before + 3:
            await asyncio.sleep(0.05)
    await asyncio.sleep(for_s)


async def prove_stopped(postgres: Postgres, when_away: str, options: Options) -> OutageRow:

    @asynccontextmanager
    async def fault(_: Sequence[RouterProcess]) -> AsyncGenerator[None]:
        async with stop_postgres(postgres, options.fault_s):
            yield

    address = await asyncio.to_thread(postgres.make_database)
    return await under_load(f"PostgreSQL stopped, {when_away}", address, when_away, options, fault)


async def prove_full(folder: Path, when_away: str, options: Options) -> OutageRow:
    """Fill the disk of a SQLite file for a while."""
    with small_disk(folder) as disk:

        @asynccontextmanager
        async def fault(_: Sequence[RouterProcess]) -> AsyncGenerator[None]:
            with full(disk):
                await asyncio.sleep(options.fault_s)
                yield

        address = sqlite_address(disk / "podium.db")
        return await under_load(f"disk full, {when_away}", address, when_away, options, fault)


async def prove_clock(address: Address, folder: Path, options: Options) -> OutageRow:
    """Move the routers' clock an hour ahead and back."""
    clock = folder / "clock"
    clock.write_text("0")

    @asynccontextmanager
    async def fault(routers: Sequence[RouterProcess]) -> AsyncGenerator[None]:
        with clock_moved(routers, clock, HOUR_S):
            await asyncio.sleep(options.fault_s)
        yield

    what = f"clock an hour ahead and back, {address.kind}"
    return await under_load(what, address, "refuse", options, fault, clock)


async def prove_migration(address: Address) -> OutageRow:
    """Migrate an older schema while another process writes, and kill it at each writing statement."""
    killed, half, n_lost = await kill_migrations(address)
    outcomes = ClosedLoopResult(other_outcomes=Counter({"migrations killed": killed}))
    return OutageRow(f"migration killed, {address.kind}", outcomes, n_lost, Audit(ledger_faults=half))


async def prove_all(only: Sequence[str], options: Options) -> list[OutageRow]:
    """Run the scenarios, one row each."""
    rows: list[OutageRow] = []
    with ExitStack() as stack:
        postgres = await asyncio.to_thread(stack.enter_context, running_postgres())
        for proof in _scenarios(postgres, options, only):
            with TemporaryDirectory() as folder:
                rows.append(await proof(Path(folder)))
            sys.stderr.write(" | ".join(cells(rows[-1])) + "\n")
    return rows


def _scenarios(
    postgres: Postgres, options: Options, only: Sequence[str]
) -> Iterator[Callable[[Path], Awaitable[OutageRow]]]:
    """Yield the scenarios as functions. Each takes an empty folder."""
    if "stop" in only:
        for when_away in MODES:
            yield lambda _, mode=when_away: prove_stopped(postgres, mode, options)
    if "disk" in only:
        for when_away in MODES:
            yield lambda folder, mode=when_away: prove_full(folder, mode, options)

    async def clock(kind: str, folder: Path) -> OutageRow:
        return await prove_clock(await empty_database(kind, postgres, folder), folder, options)

    async def migration(kind: str, folder: Path) -> OutageRow:
        return await prove_migration(await empty_database(kind, postgres, folder))

    for name, proof in (("clock", clock), ("migration", migration)):
        if name in only:
            for kind in KINDS:
                yield partial(proof, kind)


main = Program("podium prove outages")


@main.command(epilog="Example: podium prove outages --only clock")
def run(
    only: Annotated[str, Option(help="scenarios to run, separated by commas")] = ",".join(SCENARIOS),
    quiet: Annotated[float, Option(parser=parse_seconds, help="seconds before and after the fault")] = 5.0,
    fault: Annotated[float, Option(parser=parse_seconds, help="duration of the fault in seconds")] = 8.0,
    clients: Annotated[int, Option(parser=parse_count, help="number of closed-loop clients")] = 8,
) -> int:
    """Prove that nothing acknowledged is lost. The full disk needs root.

    Raises:
        BadParameter: a scenario does not exist.
    """
    names = only.split(",")
    if unknown := set(names) - set(SCENARIOS):
        raise BadParameter(
            f"unknown scenario {min(unknown)!r}. Choose from {', '.join(SCENARIOS)}.", param_hint="--only"
        )
    prepare_process()
    rows = asyncio.run(prove_all(names, Options(quiet, fault, clients)))
    return conclude(rows, f"{clients} clients, {ROUTERS} routers")
