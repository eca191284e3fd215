"""`podium ledger`: what was spent, line by line, and whether the ledger adds up.

What reads settings and databases is imported after the options are read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podium.client import Client, add_url, run
from podium.store_cli import add_settings, address_of
from program.options import count

if TYPE_CHECKING:
    from serving.database.address import Address

COLUMNS = {"when": "created_at", "kind": "kind", "worker": "worker", "dollars": "cost_usd", "team": "team_id", "key": "key_id", "run": "run_id"}  # fmt: skip
"""Titles, and the fields that are below them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium ledger",
        description="`show` lists the newest lines of a server's ledger, for the key of an administrator. `check` proves that the "
        "ledger adds up, in the store itself: every window of spending is the sum of its open holds and of its entries, and every "
        "call is entered once. Reads only; servers may go on.",
        epilog="Exit code of check: 0 where it adds up, 1 where it does not or the store cannot be read. Examples: podium ledger check; podium ledger show --team search",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{check,show}")
    add_settings(verbs.add_parser("check", help="name every sum that is not right"))
    lines = verbs.add_parser("show", help="the newest lines: who was called for what, and what it cost")
    add_url(lines)
    lines.add_argument("--team", help="of this team alone, by name or id")
    lines.add_argument("--limit", type=count, default=20, metavar="N", help="how many, at most 1000 (%(default)s)")  # fmt: skip
    lines.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    if options.verb == "show":
        return run(lambda: show_lines(Client.of(options), options))

    from conductor.errors import PodiumError

    try:
        faults = asyncio.run(_check(address_of(options.settings)))
    except PodiumError as error:
        print(f"podium ledger: {error.message} {error.detail}".rstrip(), file=sys.stderr)
        return 1
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def show_lines(client: Client, options: argparse.Namespace) -> int:
    """Print the newest lines.

    Raises:
        ClientError: the server refuses, or there is none.
    """
    lines = client.get("/v1/admin/ledger", {"limit": options.limit, "team": options.team})["data"]
    if options.json:
        for line in lines:
            print(json.dumps(line, ensure_ascii=False))
        return 0
    from rich.table import Table

    from podium.run_text import cell, terminal

    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for line in lines:
        table.add_row(*(cell(line[name]) for name in COLUMNS.values()))
    terminal().print(table if lines else "Nothing was spent yet.")
    return 0


async def _check(address: Address) -> list[str]:
    from serving.accounts.ledger_check import find_faults, read_totals
    from serving.accounts.money import to_usd
    from serving.database.database import Database
    from serving.database.migrate import check_version

    await check_version(address)
    async with Database(address) as database:
        faults = await find_faults(database)
        entries, spent, holds, held = await read_totals(database)
    print(f"{entries} entries of ${to_usd(spent):f}, {holds} open holds of ${to_usd(held):f}: "
          + (f"{len(faults)} faults" if faults else "every sum is right"))  # fmt: skip
    return faults
