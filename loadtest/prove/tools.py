"""`podium prove tools`: many runs that wait for tools, on two routers with one database, and clients that
send results in every way.

Results arrive in any order, in parts, twice concurrently, late, changed, forged, from another key, after a
router was killed, and after a stream was cut off right after the calls. One row per database. Exits with 1 if
a result reached the wrong step or was wrongly accepted, a step was called again, or money was counted twice.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

from rich.table import Table
from typer import Option

from loadtest.prove.audit import one
from loadtest.prove.tool_agents import TREATMENTS, Agents, ToolClient, ToolsResult, begin_all
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.databases import KINDS, DatabaseKind, empty_databases
from loadtest.rig.routers import PRICE, make_key, prepare_process, running_routers, scripted
from podium.command_line.options import parse_count
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.accounts.ledger_check import find_faults
from serving.database.address import Address
from serving.database.migrate import open_database

CALLS = 5
"""Number of worker calls in a complete run. Two steps with tools are called twice each, and the last step
once.
"""


def _agent(name: str, *tools: str) -> Json:
    calls = [{"name": tool, "arguments": {"of": name}} for tool in tools]
    results = f"{name} got: {{results}}."
    return scripted(name, {"text": "", "calls": calls}, results, price=PRICE, max_output_tokens=50)


SETTINGS: Json = {
    "workers": [
        _agent("one", "read"),
        _agent("two", "read", "write"),
        scripted("last", "{question}", price=PRICE, max_output_tokens=400),
    ],
    "workflows": {
        "three": [
            {"worker": "one", "subtask": "Look."},
            {"worker": "two", "subtask": "Look twice."},
            {"worker": "last", "subtask": "Say it.", "access": [0, 1], "tools": False},
        ]
    },
    "limits": {"first_byte_s": 0},
}
CALLED = "SELECT count(*) FROM (SELECT 1 FROM ledger WHERE kind IN ('call', 'lost') GROUP BY run_id HAVING count(*) > :most) AS again"
DOUBLED = "SELECT count(*) FROM (SELECT 1 FROM ledger WHERE kind IN ('call', 'lost') GROUP BY hold_id HAVING count(*) > 1) AS twice"
WAITS = "SELECT count(*) FROM suspended_run"


async def prove(address: Address, runs: int, name: str, seed: int) -> ToolsResult:
    """Run the proof over the empty database at `address`.

    Raises:
        RigError: the runs did not start.
    """
    began_s = time.monotonic()
    clients = [ToolClient(n, TREATMENTS[n % len(TREATMENTS)]) for n in range(runs)]
    async with await open_database(address) as database:
        keys = await make_key(address), await make_key(address, name="other")
        async with (
            running_routers(name, address, SETTINGS, 3) as (first, second, third),
            open_session(keys[0].headers) as session,
            open_session(keys[1].headers) as other,
        ):
            await begin_all(session, (first, second), clients)
            waited = await one(database, WAITS)
            first.kill()
            result = await Agents((session, other), (second, third), seed).run_all(clients)
            result.still_waiting = await one(database, WAITS)
        result.waited = waited
        result.called_again = await one(database, CALLED, most=CALLS)
        result.doubled, result.faults = await one(database, DOUBLED), len(await find_faults(database))
        result.seconds = time.monotonic() - began_s
        return result


HEADINGS = (
    "database",
    "runs",
    "waited",
    "resumed",
    "at the wrong step",
    "wrongly accepted or refused",
    "repeats that differ",
    "called again",
    "counted twice",
    "ledger faults",
    "still waiting",
    "s",
)


async def prove_all(kinds: Sequence[str], runs: int, seed: int, table: Table) -> bool:
    """Run the proof, one row per database. Return whether all passed."""
    right = True
    async with aclosing(empty_databases(kinds)) as databases:
        async for kind, _, address in databases:
            result = await prove(address, runs, f"tools-{kind}", seed)
            right = right and result.is_right
            table.add_row(
                *(kind, str(result.runs), str(result.waited), str(result.resumed), str(result.wrong)),
                *(str(dict(result.accepted) or 0), str(result.differing), str(result.called_again)),
                *(
                    str(result.doubled),
                    str(result.faults),
                    str(result.still_waiting),
                    f"{result.seconds:.0f}",
                ),
            )
    return right


main = Program("podium prove tools")


@main.command(epilog="Example: podium prove tools --store sqlite")
def run(
    store: Annotated[
        list[DatabaseKind] | None, Option(help="database to test; repeatable", show_default="both")
    ] = None,
    runs: Annotated[int, Option(parser=parse_count, help="runs that wait for tools")] = 500,
    seed: Annotated[int, Option(help="seed of the order of results")] = 1,
) -> int:
    """Prove that runs that wait for tools resume correctly and only once."""
    prepare_process()
    rows = table(right=HEADINGS, title=f"Runs that wait for tools, two routers, one killed; {machine()}")
    right = asyncio.run(prove_all(store or KINDS, runs, seed, rows))
    console().print(rows)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
