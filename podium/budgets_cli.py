"""`podium budgets`: list the budgets and spending of all teams and keys of a running server."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from typing import Annotated, Any

from typer import Option

from podium.client import DEFAULT_URL, Client, Url, epilog, path_part
from podium.command_line.options import JsonLines
from podium.command_line.program import Program
from podium.command_line.terminal import cell, console, inert_json, table

Json = dict[str, Any]
PAGE = 100
main = Program("podium budgets")


@main.command(epilog=epilog("podium budgets --limited"))
def list_budgets(
    url: Url = DEFAULT_URL,
    team: Annotated[str | None, Option(help="only this team and its keys, by name or id")] = None,
    own: Annotated[bool, Option("--own", help="only your own key and its team; works with any key")] = False,
    limited: Annotated[bool, Option("--limited", help="only budgets with a limit")] = False,
    as_json: JsonLines = False,
) -> int:
    """List the limit, the spending and the reserved amount of every team and key for the current day and month
    (UTC). Needs a key with the scope `admin`, except with --own. Set budgets with `podium teams budget` and
    `podium keys budget`.
    """
    with Client.open(url) as client:
        rows = [
            row
            for row in (own_rows(client) if own else budget_rows(client, team))
            if row["limit_usd"] is not None or not limited
        ]
        if as_json:
            for row in rows:
                print(inert_json(row))
        else:
            _print(rows)
    return 0


def _print(rows: list[Json]) -> None:
    budgets = table("kind", "name", "team", "period", right=("limit", "spent", "reserved", "left"))
    for row in rows:
        amounts = [_dollars(row[name]) for name in ("limit_usd", "spent_usd", "held_usd", "left_usd")]
        is_spent = row["left_usd"] is not None and Decimal(row["left_usd"]) <= 0
        budgets.add_row(
            row["whose"],
            cell(row["name"]),
            cell(row["team"]),
            row["period"],
            *amounts,
            style="red" if is_spent else "",
        )
    console().print(
        budgets if rows else "No budgets found. Set one with `podium teams budget TEAM --per-day 5`."
    )


def budget_rows(client: Client, team: str | None) -> Generator[Json]:
    """Yield a row for each combination of a team or key and a period."""
    for each in pages(client, "teams"):
        if team in (None, each["id"], each["name"]):
            yield from _rows(client, "team", each, "")
    for each in pages(client, "keys"):
        owner: Json = each["team"] or {"id": "", "name": ""}
        if each["state"] == "active" and team in (None, owner["id"], owner["name"]):
            yield from _rows(client, "key", each, owner["name"])


def pages(client: Client, what: str) -> Generator[Json]:
    """Yield every item of the admin list `what` (`teams` or `keys`), page by page."""
    after: str | None = None
    while True:
        page = client.get(f"/v1/admin/{what}", {"limit": PAGE, "after": after})
        yield from page["data"]
        if not page.get("has_more"):
            return
        after = page["data"][-1]["id"]


def own_rows(client: Client) -> Generator[Json]:
    """Yield the rows of the caller's own key and of its team, one per period."""
    own = client.get("/v1/budget")
    for owner in ("key", "team"):
        if own[owner] is not None:
            yield from _windows(owner, {"id": own[owner]["id"], "name": "own"}, "", own[owner])


def _rows(client: Client, owner: str, each: Json, team: str) -> Generator[Json]:
    budget = client.get(f"/v1/admin/{owner}s/{path_part(each['id'])}/budget")
    yield from _windows(owner, each, team, budget)


def _windows(owner: str, each: Json, team: str, budget: Json) -> Generator[Json]:
    for period in ("day", "month"):
        yield {
            "whose": owner,
            "id": each["id"],
            "name": each["name"],
            "team": team,
            "period": period,
            **budget[period],
        }


def _dollars(amount: str | None) -> str:
    return "none" if amount is None else f"${Decimal(amount).normalize():f}"
