"""`podium ledger`: whether the ledger adds up.

What reads settings and databases is imported after the options are read.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podium.store_cli import add_settings, address_of

if TYPE_CHECKING:
    from serving.database.address import Address


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium ledger",
        description="Proves that the ledger adds up: every window of spending is the sum of its open holds and of its entries, "
        "and every call is entered once. Reads only; servers may go on.",
        epilog="Exit code: 0 where it adds up, 1 where it does not or the store cannot be read. Example: podium ledger check",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{check}")
    add_settings(verbs.add_parser("check", help="name every sum that is not right"))
    options = parser.parse_args(arguments)

    from conductor.errors import PodiumError

    try:
        faults = asyncio.run(_check(address_of(options.settings)))
    except PodiumError as error:
        print(f"podium ledger: {error.message} {error.detail}".rstrip(), file=sys.stderr)
        return 1
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


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
