"""`podium budgets`: list the budgets and spending of all teams and keys of a running server."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence
from decimal import Decimal
from typing import Any

from podium.client import Client, parser_of, path_part, run
from podium.command_line.terminal import inert_json

Json = dict[str, Any]
PAGE = 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(
        "budgets",
        "List the limit, the spending and the reserved amount of every team and key for the current day and month (UTC). "
        "Needs a key with the scope `admin`, except with --own. Set budgets with `podium teams budget` and `podium keys budget`.",
        "podium budgets --limited",
    )
    parser.add_argument("--team", help="only this team and its keys, by name or id")
    parser.add_argument("--own", action="store_true", help="only your own key and its team; needs no scope")
    parser.add_argument("--limited", action="store_true", help="only budgets with a limit")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    return run(lambda: list_budgets(Client.of(options), options))


def list_budgets(client: Client, options: argparse.Namespace) -> int:
    """Print the budgets.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    rows = [
        row
        for row in (own_rows(client) if options.own else budget_rows(client, options.team))
        if row["limit_usd"] is not None or not options.limited
    ]
    if options.json:
        for row in rows:
            print(inert_json(row))
        return 0
    from rich.table import Table

    from podium.run_text import cell, terminal

    table = Table("whose", "name", "team", "period", box=None, pad_edge=False, header_style="bold")
    for title in ("limit", "spent", "held", "left"):
        table.add_column(title, justify="right")
    for row in rows:
        amounts = [_dollars(row[name]) for name in ("limit_usd", "spent_usd", "held_usd", "left_usd")]
        table.add_row(
            row["whose"],
            cell(row["name"]),
            cell(row["team"]),
            row["period"],
            *amounts,
            style="red" if _is_spent(row) else "",
        )
    terminal().print(
        table if rows else "No budget is set. Set one with `podium teams budget TEAM --per-day 5`."
    )
    return 0


def budget_rows(client: Client, team: str | None) -> Generator[Json]:
    """Yield a row per team or key and period.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    for each in pages(client, "teams"):
        if team in (None, each["id"], each["name"]):
            yield from _rows(client, "team", each, "")
    for each in pages(client, "keys"):
        owner: Json = each["team"] or {"id": "", "name": ""}
        if each["state"] == "active" and team in (None, owner["id"], owner["name"]):
            yield from _rows(client, "key", each, owner["name"])


def pages(client: Client, what: str) -> Generator[Json]:
    """Yield every item of the admin list `what` (`teams` or `keys`), page by page.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    after: str | None = None
    while True:
        page = client.get(f"/v1/admin/{what}", {"limit": PAGE, "after": after})
        yield from page["data"]
        if not page.get("has_more"):
            return
        after = page["data"][-1]["id"]


def own_rows(client: Client) -> Generator[Json]:
    """Yield a row per period for the caller's own key and its team.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    own = client.get("/v1/budget")
    for whose in ("key", "team"):
        if own[whose] is not None:
            yield from _windows(whose, {"id": own[whose]["id"], "name": "own"}, "", own[whose])


def _rows(client: Client, whose: str, each: Json, team: str) -> Generator[Json]:
    budget = client.get(f"/v1/admin/{whose}s/{path_part(each['id'])}/budget")
    yield from _windows(whose, each, team, budget)


def _windows(whose: str, each: Json, team: str, budget: Json) -> Generator[Json]:
    for period in ("day", "month"):
        yield {
            "whose": whose,
            "id": each["id"],
            "name": each["name"],
            "team": team,
            "period": period,
            **budget[period],
        }


def _is_spent(row: Json) -> bool:
    return row["left_usd"] is not None and Decimal(row["left_usd"]) <= 0


def _dollars(amount: str | None) -> str:
    return "none" if amount is None else f"${Decimal(amount).normalize():f}"
