"""`podium costs`: spending per day, model and worker, and what the providers' caches saved."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from podium.budgets_cli import pages
from podium.client import DEFAULT_URL, Client, ClientError, Url, epilog
from podium.command_line.options import option
from podium.command_line.program import Program
from podium.command_line.terminal import cell, console, inert_json, table

if TYPE_CHECKING:
    from rich.table import Table

Json = dict[str, Any]
BAR_WIDTH = 40
"""Width of the longest bar in columns."""
COLUMNS = {"day": "day", "team": "team_id", "key": "key_id", "model": "model", "worker": "worker"}
"""Field of a group, by the name by which it is chosen."""
SUMS = ("runs", "tokens in", "cached", "tokens out", "cost", "saved")
iso_day = option(date.fromisoformat)
main = Program("podium costs")


@main.command(epilog=epilog("podium costs --from 2026-11-01 --by team,worker"))
def show_costs(
    url: Url = DEFAULT_URL,
    first: Annotated[
        date | None,
        Option(
            "--from", parser=iso_day, metavar="DAY", help="first day (UTC)", show_default="29 days before"
        ),
    ] = None,
    last: Annotated[
        date | None,
        Option("--to", parser=iso_day, metavar="DAY", help="last day (UTC)", show_default="today"),
    ] = None,
    by: Annotated[
        str, Option(metavar="FIELDS", help=f"fields of the table, separated by commas: {', '.join(COLUMNS)}")
    ] = "model,worker",
    as_json: Annotated[bool, Option("--json", help="print the whole report as JSON")] = False,
) -> int:
    """Show the costs of your team's runs: a bar for each day, and a table."""
    period = {"from": first and first.isoformat(), "to": last and last.isoformat()}
    with Client.open(url) as client:
        report = client.get("/v1/costs", period | {"by": by})
        if as_json:
            print(inert_json(report, indent=2))
            return 0
        days = client.get("/v1/costs", {"from": report["from"], "to": report["to"], "by": "day"})
        fields = list(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
        _print_costs(report, days["data"], fields, _names(client, fields))
    return 0


def _names(client: Client, fields: list[str]) -> dict[str, str]:
    """Return the names of teams and keys by id. Only an administrator may list them."""
    with suppress(ClientError):
        return {
            each["id"]: each["name"]
            for field in ("team", "key")
            if field in fields
            for each in pages(client, f"{field}s")
        }
    return {}


def _print_costs(report: Json, days: list[Json], fields: list[str], names: dict[str, str]) -> None:
    out = console()
    if not days:
        out.print(f"No run has ended from {report['from']} to {report['to']}.")
        return
    out.print(_bars(days))
    out.print()
    out.print(_table(report["data"], days, fields, names))
    out.print()
    out.print(f"saved by caches: {_usd(_total(days, 'saved_usd'))}")
    if unknown := sum(day["unknown_costs"] for day in days):
        out.print(f"calls of unknown cost, not included: {unknown}")
    if ledger := report["ledger"]:
        difference = Decimal(ledger["difference_usd"])
        out.print(f"ledger: {_usd(Decimal(ledger['cost_usd']))}, difference {_usd(difference)}")
    if report["baseline"] is not None:
        baseline = cell(report["baseline"]).plain
        omission = ", without answers of unknown cost" if unknown else ""
        out.print(f"with {baseline} alone, estimated{omission}: {_usd(_total(days, 'baseline_usd'))}")


def _bars(days: list[Json]) -> Table:
    """Return a table with a bar for each day, whose length is proportional to the day's cost."""
    from rich.bar import Bar

    highest = float(max(Decimal(day["cost_usd"]) for day in days)) or 1.0
    rows = table("day", "", right=("cost", "cached"))
    for day in days:
        bar = Bar(highest, 0, float(day["cost_usd"]), width=BAR_WIDTH, color="cyan")
        rows.add_row(cell(day["day"]), bar, _usd(Decimal(day["cost_usd"])), _share(day))
    return rows


def _table(groups: list[Json], days: list[Json], fields: list[str], names: dict[str, str]) -> Table:
    """Return a table with a row for each group, the most expensive one first, and the totals."""
    rows = table(*fields, right=SUMS)
    for group in sorted(groups, key=lambda each: Decimal(each["cost_usd"]), reverse=True):
        values = [group[COLUMNS[field]] or "none" for field in fields]
        rows.add_row(*(cell(names.get(value, value)) for value in values), *_sums(group))
    total: Json = {name: sum(day[name] for day in days) for name in ("runs", "input_tokens", "cached_tokens", "output_tokens")}  # fmt: skip
    total |= {name: _total(days, name) for name in ("cost_usd", "saved_usd")}
    rows.add_section()
    rows.add_row(cell("total"), *[""] * (len(fields) - 1), *_sums(total))
    return rows


def _sums(group: Json) -> list[str]:
    return [
        f"{group['runs']:,}",
        f"{group['input_tokens']:,}",
        _share(group),
        f"{group['output_tokens']:,}",
        _usd(Decimal(group["cost_usd"])),
        _usd(Decimal(group["saved_usd"])),
    ]


def _share(group: Json) -> str:
    tokens = group["input_tokens"]
    return f"{group['cached_tokens'] / tokens:.0%}" if tokens else ""


def _total(groups: list[Json], name: str) -> Decimal:
    return sum((Decimal(group[name]) for group in groups), Decimal(0))


def _usd(amount: Decimal) -> str:
    """Format an amount with at least four digits."""
    sign, amount = "-" if amount < 0 else "", abs(amount)
    return f"{sign}${amount:.4f}" if amount < 10 else f"{sign}${amount:,.2f}"
