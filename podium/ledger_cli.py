"""`podium ledger`: list, check, reconcile and correct the ledger.

Modules that read settings and databases are imported only after the options are parsed.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from podium.client import DEFAULT_URL, Client, Url, epilog
from podium.command_line.options import JsonLines, option, parse_count
from podium.command_line.program import CommandError, Program
from podium.command_line.terminal import cell, console, inert_json, table
from podium.store_cli import SettingsFile, address_of, errors_in_one_line

if TYPE_CHECKING:
    from serving.database.address import Address

COLUMNS = {"id": "id", "when": "created_at", "kind": "kind", "worker": "worker", "account": "account", "dollars": "cost_usd", "team": "team_id", "key": "key_id", "run": "run_id"}  # fmt: skip
"""Field of a ledger entry, by the title of its column."""
SUM_COLUMNS = ("day", "worker", "account", "calls", "input_tokens", "cached_tokens", "output_tokens", "usd", "uncertain_usd")  # fmt: skip
EPOCH = date(1970, 1, 1)
EXIT_CODES = (
    "Exit code of check and reconcile: 0 if all sums match, 1 if they differ or the store cannot be read."
)
iso_day = option(date.fromisoformat)


@option
def dollars(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{text!r} is not an amount in dollars, such as 0.05") from None


main = Program(
    "podium ledger",
    help="`show` lists the newest entries of a server's ledger, and needs an administrator's key. `check` verifies the "
    "ledger in the store itself: every spending window equals the sum of its open holds and its entries, and every call "
    "is entered once. `reconcile` sums the ledger by day (UTC), worker and account, as providers bill, and compares the "
    "sums with an invoice. `adjust` corrects an entry by adding another one with a reason. Existing entries never change. Servers "
    "may run meanwhile.",
    epilog=f"{EXIT_CODES}\n\nExamples: podium ledger check; podium ledger show --team search; podium ledger reconcile "
    "--from 2026-11-01 invoice.csv; podium ledger adjust 4711 --to 0.0002 --reason 'invoice of November'",
)


@main.command(
    "adjust", epilog="Example: podium ledger adjust 4711 --to 0.0002 --reason 'invoice of November'"
)
async def adjust(
    entry: Annotated[int, Argument(metavar="ID", help="id of the entry, from `podium ledger show --json`")],
    to: Annotated[Decimal, Option(parser=dollars, metavar="DOLLARS", help="the true cost of the call")],
    reason: Annotated[str, Option(help="reason, which is stored with the correction")],
    settings: SettingsFile = None,
) -> int:
    """Correct an entry by adding another one, with a reason."""
    with errors_in_one_line():
        await _adjust(address_of(settings), entry, to, reason)
    return 0


@main.command(
    "reconcile", epilog=f"{EXIT_CODES}\n\nExample: podium ledger reconcile --from 2026-11-01 invoice.csv"
)
async def reconcile(
    invoice: Annotated[
        Path | None,
        Argument(
            metavar="INVOICE.csv",
            help="CSV file with the columns day, worker, usd and, for workers with deployments, account",
            show_default="print the sums in this format",
        ),
    ] = None,
    first: Annotated[
        date | None, Option("--from", parser=iso_day, metavar="DAY", help="first day, such as 2026-11-01")
    ] = None,
    last: Annotated[date | None, Option("--to", parser=iso_day, metavar="DAY", help="last day")] = None,
    tolerance: Annotated[
        Decimal, Option(parser=dollars, metavar="DOLLARS", help="largest accepted difference per sum")
    ] = Decimal("0.01"),
    settings: SettingsFile = None,
) -> int:
    """Sum by day, worker and account, and compare with a provider's invoice."""
    with errors_in_one_line():
        sums = await _sums(address_of(settings), first, last)
    if invoice is None:
        _print_sums(sums)
        return 0
    try:
        return _print_faults(list(_differences(invoice, tolerance, sums)))
    except (OSError, KeyError, ValueError, ArithmeticError) as error:
        columns = "day, worker, account and usd"
        raise CommandError(f"{invoice} is not a CSV file with the columns {columns}: {error}") from error


@main.command("check", epilog=f"{EXIT_CODES}\n\nExample: podium ledger check")
async def check(settings: SettingsFile = None) -> int:
    """List the sums that do not match."""
    with errors_in_one_line():
        return _print_faults(await _check(address_of(settings)))


@main.command("show", epilog=epilog("podium ledger show --team search"))
def show(
    url: Url = DEFAULT_URL,
    team: Annotated[str | None, Option(help="only this team, by name or id")] = None,
    limit: Annotated[
        int, Option(parser=parse_count, metavar="N", help="number of entries, at most 1000")
    ] = 20,
    as_json: JsonLines = False,
) -> int:
    """List the newest entries: who called which worker, and the cost."""
    with Client.open(url) as client:
        lines = client.get("/v1/admin/ledger", {"limit": limit, "team": team})["data"]
        if as_json:
            for line in lines:
                print(inert_json(line))
        else:
            rows = table(*COLUMNS)
            for line in lines:
                rows.add_row(*(cell(line[name]) for name in COLUMNS.values()))
            console().print(rows if lines else "The ledger has no entries yet.")
    return 0


def _print_faults(faults: Sequence[str]) -> int:
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


async def _adjust(address: Address, entry: int, to: Decimal, reason: str) -> None:
    """Add an entry that corrects the cost of another one."""
    from serving.accounts.ledger_lines import adjust
    from serving.accounts.money import to_pico, to_usd
    from serving.database.database import Database
    from serving.database.migrate import check_version

    try:
        amount = to_pico(to)
    except ValueError as error:
        raise CommandError(f"--to {error}.") from error
    await check_version(address)
    async with Database(address) as database:
        difference = await adjust(database, entry, amount, reason)
    sign = "-" if difference < 0 else "+"
    print(f"Corrected entry {entry} to ${to:f} ({sign}${to_usd(abs(difference)):f}).")


async def _sums(address: Address, first: date | None, last: date | None) -> dict[tuple[str, str, str], Any]:
    """Sum the ledger's entries by day, worker and account."""
    from serving.accounts.ledger_lines import daily_sums
    from serving.database.database import Database
    from serving.database.migrate import check_version

    days = [None if day is None else (day - EPOCH).days for day in (first, last)]
    await check_version(address)
    async with Database(address) as database, database.reading() as connection:
        rows = (await connection.execute(daily_sums(*days))).all()
    return {(str(EPOCH + timedelta(row.day)), row.worker or "", row.account or ""): row for row in rows}


def _print_sums(sums: Mapping[tuple[str, str, str], Any]) -> None:
    from serving.accounts.money import to_usd

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(SUM_COLUMNS)
    for where, row in sums.items():
        counts = (row.calls, row.input_tokens, row.cached_tokens, row.output_tokens)
        writer.writerow(
            [*where, *counts, *(f"{to_usd(int(each)):f}" for each in (row.amount, row.uncertain))]
        )


def _differences(
    invoice: Path, tolerance: Decimal, sums: Mapping[tuple[str, str, str], Any]
) -> Iterator[str]:
    """Yield a sentence for each day, worker and account for which ledger and invoice differ too much."""
    from serving.accounts.money import to_usd

    billed: dict[tuple[str, str, str], Decimal] = {}
    with invoice.open(encoding="utf-8-sig", newline="") as file:
        for line in csv.DictReader(file):
            where = (str(date.fromisoformat(line["day"])), line["worker"], line.get("account") or "")
            billed[where] = billed.get(where, Decimal(0)) + Decimal(line["usd"])
    for where in sorted(billed.keys() | sums.keys()):
        usd = to_usd(int(sums[where].amount)) if where in sums else Decimal(0)
        off = usd - billed.get(where, Decimal(0))
        if abs(off) > tolerance:
            day, worker, account = where
            name = f"{worker}@{account}" if account else worker
            uncertain = to_usd(int(sums[where].uncertain)) if where in sums else Decimal(0)
            yield (f"{day} {name}: the ledger has ${usd:f}, but the invoice has ${billed.get(where, Decimal(0)):f}. "
                   f"${uncertain:f} of the ledger's sum are upper bounds or estimates.")  # fmt: skip


async def _check(address: Address) -> list[str]:
    from serving.accounts.ledger_check import find_faults, read_totals
    from serving.accounts.money import to_usd
    from serving.database.database import Database
    from serving.database.migrate import check_version

    await check_version(address)
    async with Database(address) as database:
        faults = await find_faults(database)
        entries, spent, holds, held_sum = await read_totals(database)
    print(f"Checked {entries} entries (${to_usd(spent):f}) and {holds} open holds (${to_usd(held_sum):f}): "
                + (f"{len(faults)} faults" if faults else "all sums match"))  # fmt: skip
    return faults
