"""`podium prove tools`: many runs that wait for tools, two routers and one database, and everything that clients do with
results: in any order, in parts, twice at once, late, changed, forged, from another key, after a router was killed
and after a stream was cut right after the calls.

A row for each database. Exit 1 where a result reached the wrong step, was wrongly accepted, a step was called
again, or money was counted twice.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing

from rich.table import Table

from loadtest.prove.audit import one
from loadtest.prove.ledger import PRICE
from loadtest.prove.tool_agents import TREATMENTS, Agents, ToolClient, ToolsFound, begin_all
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.databases import KINDS, empty_databases
from loadtest.rig.routers import make_key, prepare_process, running_routers
from program.options import count
from program.process import machine, wide_console
from serving.accounts.ledger_check import find_faults
from serving.database.address import Address
from serving.database.migrate import open_database

CALLS = 5
"""Of a whole run: two steps with tools are called twice each, the last one once."""


def _agent(name: str, *tools: str) -> Json:
    calls = [{"name": tool, "arguments": {"of": name}} for tool in tools]
    replies = [{"text": "", "calls": calls}, f"{name} got: {{results}}."]
    return {
        "name": name,
        "kind": "scripted",
        "replies": replies,
        "price": PRICE,
        "max_output_tokens": 50,
        "max_concurrency": 1000,
    }


SETTINGS: Json = {
    "workers": [
        _agent("one", "read"),
        _agent("two", "read", "write"),
        {
            "name": "last",
            "kind": "scripted",
            "replies": ["{question}"],
            "price": PRICE,
            "max_output_tokens": 400,
            "max_concurrency": 1000,
        },
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


async def prove(address: Address, runs: int, name: str, seed: int) -> ToolsFound:
    """Over the empty database at `address`.

    Raises:
        RigError: the runs did not begin.
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
            found = await Agents((session, other), (second, third), seed).run_all(clients)
            found.still_waiting = await one(database, WAITS)
        found.waited = waited
        found.called_again = await one(database, CALLED, most=CALLS)
        found.doubled, found.faults = await one(database, DOUBLED), len(await find_faults(database))
        found.seconds = time.monotonic() - began_s
        return found


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
    """A row for each database; gives whether all is right."""
    right = True
    async with aclosing(empty_databases(kinds)) as databases:
        async for kind, _, address in databases:
            found = await prove(address, runs, f"tools-{kind}", seed)
            right = right and found.is_right
            table.add_row(
                *(kind, str(found.runs), str(found.waited), str(found.resumed), str(found.wrong)),
                *(str(dict(found.accepted) or 0), str(found.differing), str(found.called_again)),
                *(str(found.doubled), str(found.faults), str(found.still_waiting), f"{found.seconds:.0f}"),
            )
    return right


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium prove tools", description="Prove that runs that wait for tools go on right, and once."
    )
    parser.add_argument("--store", choices=KINDS, action="append", help="which database; both, unless said")
    parser.add_argument("--runs", type=count, default=500, help="runs that wait (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of results (%(default)s)")
    options = parser.parse_args(argv)
    prepare_process()
    table = Table(title=f"Runs that wait for tools, two routers, one killed; {machine()}")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    right = asyncio.run(prove_all(options.store or KINDS, options.runs, options.seed, table))
    wide_console().print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
