"""`podium prove tools`: many runs that wait for tools, on two routers with one database, and clients that
send results in every way.

Results arrive in any order, in parts, twice concurrently, late, changed, forged, from another key, after a
router was killed, and after a stream was cut off right after the calls. One row per database. Exits with 1 if
a result reached the wrong step or was wrongly accepted, a step was called again, or money was counted twice.
"""

import asyncio
import time
from functools import partial
from typing import Annotated

from typer import Option

from loadtest.prove.audit import BILLED_TWICE, one
from loadtest.prove.proof import Stores, conclude, for_each_store
from loadtest.prove.tool_agents import TREATMENTS, Agents, ToolClient, ToolsResult, begin_all
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.routers import PRICE, make_key, prepare_process, running_routers, scripted
from podium.command_line.options import parse_count
from podium.command_line.program import Program
from serving.accounts.ledger_check import find_faults
from serving.database.address import Address
from serving.database.migrate import open_database

CALLS = 5
"""Worker calls in a complete run: two for each of the two steps with tools, one for the last."""


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
WAITS = "SELECT count(*) FROM suspended_run"


async def prove(kind: str, address: Address, runs: int, seed: int) -> ToolsResult:
    """Run the proof over the empty database at `address`."""
    began_s = time.monotonic()
    clients = [ToolClient(n, TREATMENTS[n % len(TREATMENTS)]) for n in range(runs)]
    async with await open_database(address) as database:
        keys = await make_key(address), await make_key(address, name="other")
        async with (
            running_routers(f"tools-{kind}", address, SETTINGS, 3) as (first, second, third),
            open_session(keys[0].headers) as session,
            open_session(keys[1].headers) as other,
        ):
            await begin_all(session, (first, second), clients)
            waited = await one(database, WAITS)
            first.kill()
            result = await Agents((session, other), (second, third), seed).run_all(clients)
            result.still_waiting = await one(database, WAITS)
        result.database, result.waited_for_tools = kind, waited
        result.steps_called_again = await one(database, CALLED, most=CALLS)
        result.billed_twice, result.ledger_faults = (
            await one(database, BILLED_TWICE),
            len(await find_faults(database)),
        )
        result.seconds = time.monotonic() - began_s
        return result


main = Program("podium prove tools")


@main.command(epilog="Example: podium prove tools --store sqlite")
def run(
    store: Stores = None,
    runs: Annotated[int, Option(parser=parse_count, help="number of runs that wait for tools")] = 500,
    seed: Annotated[int, Option(help="seed of the order in which results are sent")] = 1,
) -> int:
    """Prove that runs that wait for tools resume correctly and only once."""
    prepare_process()
    rows = asyncio.run(for_each_store(store, partial(prove, runs=runs, seed=seed)))
    return conclude(rows, "Runs that wait for tools, two routers, one killed")
