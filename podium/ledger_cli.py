"""`podium ledger`: list, check, reconcile and correct the ledger.

Modules that read settings and databases are imported only after the options are parsed.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.client import Client, add_url, run
from podium.command_line.options import count
from podium.command_line.terminal import inert_json
from podium.store_cli import add_settings, address_of

if TYPE_CHECKING:
    from serving.database.address import Address

COLUMNS = {"id": "id", "when": "created_at", "kind": "kind", "worker": "worker", "account": "account", "dollars": "cost_usd", "team": "team_id", "key": "key_id", "run": "run_id"}  # fmt: skip
"""Column title to field of a ledger entry."""
SUM_COLUMNS = ("day", "worker", "account", "calls", "input_tokens", "cached_tokens", "output_tokens", "usd", "uncertain_usd")  # fmt: skip
EPOCH = date(1970, 1, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="podium ledger",
        description="`show` lists the newest entries of a server's ledger; it needs an administrator's key. `check` verifies the ledger "
        "in the store itself: every spending window equals the sum of its open holds and its entries, and every call is entered once. "
        "`reconcile` sums the ledger by day (UTC), worker and account, as providers bill, and compares the sums with an "
        "invoice. `adjust` corrects an entry by adding another one with a reason; entries never change. Servers may keep running.",
        epilog="Exit code of check and reconcile: 0 if it adds up, 1 if it does not or the store cannot be read. Examples: podium ledger check; "
        "podium ledger show --team search; podium ledger reconcile --from 2026-11-01 invoice.csv; "
        "podium ledger adjust 4711 --to 0.0002 --reason 'invoice of November'",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{adjust,check,reconcile,show}")
    _add_adjust(verbs.add_parser("adjust", help="correct an entry by adding another one, with a reason"))
    _add_reconcile(
        verbs.add_parser(
            "reconcile", help="sum by day, worker and account, and compare with a provider's invoice"
        )
    )
    add_settings(verbs.add_parser("check", help="list every sum that does not add up"))
    lines = verbs.add_parser("show", help="list the newest entries: who called which worker, and the cost")
    add_url(lines)
    lines.add_argument("--team", help="only this team, by name or id")
    lines.add_argument("--limit", type=count, default=20, metavar="N", help="number of entries, at most 1000 (%(default)s)")  # fmt: skip
    lines.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    if options.verb == "show":
        return run(lambda: show_lines(Client.of(options), options))

    from conductor.errors import PodiumError

    work = {"check": _check, "reconcile": _reconcile, "adjust": _adjust}[options.verb]
    try:
        faults = asyncio.run(work(address_of(options.settings), options))
    except PodiumError as error:
        print(f"podium ledger: {error.message} {error.detail}".rstrip(), file=sys.stderr)
        return 1
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def show_lines(client: Client, options: argparse.Namespace) -> int:
    """Print the newest entries.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    lines = client.get("/v1/admin/ledger", {"limit": options.limit, "team": options.team})["data"]
    if options.json:
        for line in lines:
            print(inert_json(line))
        return 0
    from rich.table import Table

    from podium.run_text import cell, terminal

    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for line in lines:
        table.add_row(*(cell(line[name]) for name in COLUMNS.values()))
    terminal().print(table if lines else "The ledger has no entries yet.")
    return 0


def _add_adjust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "entry", type=int, metavar="ID", help="id of the entry, from `podium ledger show --json`"
    )
    parser.add_argument(
        "--to", type=Decimal, required=True, metavar="DOLLARS", help="the true cost of the call"
    )
    parser.add_argument("--reason", required=True, help="stored with the correction")
    add_settings(parser)


def _add_reconcile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("invoice", type=Path, nargs="?", metavar="INVOICE.csv",
        help="columns day, worker, usd and, for workers with deployments, account (default: print the sums in this format)")  # fmt: skip
    parser.add_argument("--from", dest="first", type=date.fromisoformat, metavar="DAY", help="first day, such as 2026-11-01")  # fmt: skip
    parser.add_argument("--to", dest="last", type=date.fromisoformat, metavar="DAY", help="last day")
    parser.add_argument("--tolerance", type=Decimal, default=Decimal("0.01"), metavar="DOLLARS",
            help="largest difference to accept per sum (%(default)s)")  # fmt: skip
    add_settings(parser)


async def _adjust(address: Address, options: argparse.Namespace) -> list[str]:
    from serving.accounts.ledger_lines import adjust
    from serving.accounts.money import to_pico, to_usd
    from serving.database.database import Database
    from serving.database.migrate import check_version

    try:
        amount = to_pico(options.to)
    except ValueError as error:
        return [f"podium ledger: --to {error}"]
    await check_version(address)
    async with Database(address) as database:
        difference = await adjust(database, options.entry, amount, options.reason)
    sign = "-" if difference < 0 else "+"
    print(f"Entry {options.entry} now counts ${options.to:f} ({sign}${to_usd(abs(difference)):f}).")
    return []


async def _reconcile(address: Address, options: argparse.Namespace) -> list[str]:
    from serving.accounts.ledger_lines import daily_sums
    from serving.database.database import Database
    from serving.database.migrate import check_version

    days = [None if day is None else (day - EPOCH).days for day in (options.first, options.last)]
    await check_version(address)
    async with Database(address) as database, database.reading() as connection:
        rows = (await connection.execute(daily_sums(*days))).all()
    sums = {(str(EPOCH + timedelta(row.day)), row.worker or "", row.account or ""): row for row in rows}
    if options.invoice is None:
        _print_sums(sums)
        return []
    try:
        return list(_differences(options, sums))
    except (OSError, KeyError, ValueError, ArithmeticError) as error:
        return [
            f"podium ledger: {options.invoice} is not a CSV file with columns day, worker, account and usd: {error}"
        ]


def _print_sums(sums: Mapping[tuple[str, str, str], Any]) -> None:
    from serving.accounts.money import to_usd

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(SUM_COLUMNS)
    for where, row in sums.items():
        counts = (row.calls, row.input_tokens, row.cached_tokens, row.output_tokens)
        writer.writerow(
            [*where, *counts, *(f"{to_usd(int(each)):f}" for each in (row.amount, row.uncertain))]
        )


def _differences(options: argparse.Namespace, sums: Mapping[tuple[str, str, str], Any]) -> Iterator[str]:
    """Yield a sentence for each day, worker and account whose sums differ by more than the tolerance.

    Raises:
        OSError, KeyError, ValueError, ArithmeticError: the invoice cannot be read.
    """
    from serving.accounts.money import to_usd

    billed: dict[tuple[str, str, str], Decimal] = {}
    with options.invoice.open(encoding="utf-8-sig", newline="") as file:
        for line in csv.DictReader(file):
            where = (str(date.fromisoformat(line["day"])), line["worker"], line.get("account") or "")
            billed[where] = billed.get(where, Decimal(0)) + Decimal(line["usd"])
    for where in sorted(billed.keys() | sums.keys()):
        usd = to_usd(int(sums[where].amount)) if where in sums else Decimal(0)
        off = usd - billed.get(where, Decimal(0))
        if abs(off) > options.tolerance:
            day, worker, account = where
            name = f"{worker}@{account}" if account else worker
            uncertain = to_usd(int(sums[where].uncertain)) if where in sums else Decimal(0)
            yield (f"{day} {name}: the ledger has ${usd:f}, the invoice ${billed.get(where, Decimal(0)):f}; "
                   f"${uncertain:f} of the ledger's sum are upper bounds or estimates")  # fmt: skip


async def _check(address: Address, _: argparse.Namespace) -> list[str]:
    from serving.accounts.ledger_check import find_faults, read_totals
    from serving.accounts.money import to_usd
    from serving.database.database import Database
    from serving.database.migrate import check_version

    await check_version(address)
    async with Database(address) as database:
        faults = await find_faults(database)
        entries, spent, holds, held = await read_totals(database)
    print(f"{entries} entries of ${to_usd(spent):f}, {holds} open holds of ${to_usd(held):f}: "
                + (f"{len(faults)} faults" if faults else "all sums match"))  # fmt: skip
    return faults
