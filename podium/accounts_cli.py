"""`podium keys` and `podium teams`.

They change the store directly, so they work before the first key exists and while no server runs. With
`--url` they use a server's admin API instead. Running servers apply a change within 10 s.

Modules that read settings and databases are imported only after the options are parsed.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from podium.accounts_options import AccountsPlace, BudgetLimits, duration_s, lifetime_s
from podium.client import ClientError
from podium.command_line.options import JsonLines, option
from podium.command_line.program import Program
from podium.command_line.terminal import cell, console, inert, inert_json, table
from podium.policy_cli import check_against, read_fields, show_policy
from serving.accounts.caller import DEFAULT_SCOPES, Scope, join, parse_scopes
from serving.accounts.hold import key_subject, team_subject
from serving.accounts.key_info import US, KeyEdit, KeyInfo, TeamInfo, iso
from serving.accounts.keys import ApiKey

if TYPE_CHECKING:
    from podium.accounts_options import Accounts
    from serving.accounts.account_policy import AccountPolicy
    from serving.accounts.budget_limits import Spending


KeyName = Annotated[str, Argument(help="id or name of the key")]
TeamName = Annotated[str, Argument(help="name or id of the team")]
Fields = Annotated[
    list[str] | None,
    Argument(
        metavar="FIELD=VALUE",
        help="fields to change, such as models=podium-mini,podium-ultra local_only=true max_cost_usd=0.50; `any` removes a limit",
    ),
]
PolicyJson = Annotated[bool, Option("--json", help="print one JSON object")]
keys = Program(
    "podium keys",
    help="Create, list, edit, revoke and rotate API keys.",
    epilog="Example: podium keys create search-app --team search --expires 90d",
)
teams = Program(
    "podium teams",
    help="Manage teams. Keys of a team see each other's runs and no other team's.",
    epilog="Example: podium teams create search",
)


@keys.command("create", epilog="Example: podium keys create search-app --team search --expires 90d")
async def create_key(
    name: Annotated[str, Argument(help="name of the key, such as the program that uses it")],
    place: AccountsPlace,
    team: Annotated[
        str | None, Option(help="name or id of the team whose runs it sees", show_default="only its own runs")
    ] = None,
    scopes: Annotated[
        frozenset[Scope],
        Option(
            parser=option(parse_scopes),
            metavar="SCOPES",
            help="comma-separated: run (call models), read (see the team's runs), admin (everything)",
            show_default=join(DEFAULT_SCOPES),
        ),
    ] = DEFAULT_SCOPES,
    expires: Annotated[
        float | None,
        Option(
            parser=duration_s,
            metavar="TIME",
            help="lifetime, such as 90d or 36h",
            show_default="never expires",
        ),
    ] = None,
) -> int:
    """Create a key and print its secret once."""
    expires_us = None if expires is None else int((time.time() + expires) * US)
    async with place.open() as (directory, where):
        key, info = await directory.create_key(name, team, scopes, expires_us)
        _show_secret(key, f"Created key {_describe(info)} in {where}.")
    return 0


@keys.command("list", epilog="Example: podium keys list --team search")
async def list_keys(
    place: AccountsPlace,
    team: Annotated[str | None, Option(help="only keys of this team, by name or id")] = None,
    all: Annotated[bool, Option("--all", help="include revoked and expired keys")] = False,
    as_json: JsonLines = False,
) -> int:
    """List keys, newest first."""
    now_us = int(time.time() * US)
    async with place.open() as (directory, where):
        all_keys = await directory.keys(team)
    shown = [key for key in all_keys if all or key.state(now_us) not in ("revoked", "expired")]
    none = (
        "No active keys. Use --all to include revoked and expired keys."
        if all_keys
        else "No keys exist yet. Create one with `podium keys create NAME`."
    )
    _show([_row(key, now_us) for key in shown], f"{none} ({where})", as_json=as_json)
    return 0


@keys.command("edit", epilog="Example: podium keys edit search-app --scopes read --expires 30d")
async def edit_key(
    key: KeyName,
    place: AccountsPlace,
    scopes: Annotated[
        frozenset[Scope] | None,
        Option(parser=option(parse_scopes), metavar="SCOPES", help="all scopes of the key from now on"),
    ] = None,
    expires: Annotated[
        float | None,
        Option(parser=lifetime_s, metavar="TIME", help="lifetime from now, such as 90d, or `never`"),
    ] = None,
) -> int:
    """Change the scopes or the expiry of a key. Every server applies this within 10 s."""
    if scopes is None and expires is None:
        raise ClientError("Nothing to change. Use --scopes or --expires.")
    edit: KeyEdit = {} if scopes is None else {"scopes": scopes}
    if expires is not None:
        edit["expires_us"] = None if expires == math.inf else int((time.time() + expires) * US)
    async with place.open() as (directory, _):
        info = await directory.change_key(key, edit)
    until = iso(info.expires_us)
    print(
        f"Changed key {_describe(info)}. It {f'expires at {until}' if until else 'never expires'}. Servers apply this within 10 s."
    )
    return 0


@keys.command("revoke", epilog="Example: podium keys revoke search-app")
async def revoke_key(key: KeyName, place: AccountsPlace) -> int:
    """Revoke a key. Every server rejects it within 10 s."""
    async with place.open() as (directory, _):
        print(f"Revoked key {_describe(await directory.revoke(key))}. Servers reject it within 10 s.")
    return 0


@keys.command("rotate", epilog="Example: podium keys rotate search-app --overlap 1h")
async def rotate_key(
    key: KeyName,
    place: AccountsPlace,
    overlap: Annotated[
        float,
        Option(
            parser=duration_s,
            metavar="TIME",
            help="how long the old secret stays valid, such as 1h",
            show_default="rejected within 10 s",
        ),
    ] = 0.0,
) -> int:
    """Give a key a new secret and print it once."""
    async with place.open() as (directory, _):
        secret, info = await directory.rotate(key, overlap)
    until = (
        f"stays valid until {iso(int((time.time() + overlap) * US))}"
        if overlap
        else "is rejected within 10 s"
    )
    _show_secret(secret, f"Created a new secret for key {_describe(info)}. The old secret {until}.")
    return 0


@keys.command("budget", epilog="Example: podium keys budget search-app --per-day 5")
async def key_budget(
    key: KeyName, place: AccountsPlace, limits: BudgetLimits, as_json: JsonLines = False
) -> int:
    """Show or set the budget of a key."""
    async with place.open() as (directory, _):
        return await _budget(directory, key_subject((await directory.key(key)).id), limits, as_json=as_json)


@keys.command("policy", epilog="Example: podium keys policy search-app max_cost_usd=0.50")
async def key_policy(
    key: KeyName, place: AccountsPlace, fields: Fields = None, as_json: PolicyJson = False
) -> int:
    """Show or change the policy of a key."""
    async with place.open() as (directory, _):
        info = await directory.key(key)
        if fields:
            info = await directory.change_key_policy(info.id, _changes(fields, place))
        show_policy(info.policy, as_json=as_json)
    return 0


@teams.command("create", epilog="Example: podium teams create search")
async def create_team(
    name: Annotated[str, Argument(help="unique name of the team")], place: AccountsPlace
) -> int:
    """Create a team."""
    async with place.open() as (directory, _):
        team = await directory.create_team(name)
    print(
        f"Created team {team.name!r} ({inert(team.id)}). Next, create a key: podium keys create NAME --team {team.name!r}"
    )
    return 0


@teams.command("list", epilog="Example: podium teams list")
async def list_teams(place: AccountsPlace, as_json: JsonLines = False) -> int:
    """List teams, oldest first."""
    async with place.open() as (directory, where):
        rows = [_team_row(team) for team in await directory.teams()]
    none = "No teams exist yet. Create one with `podium teams create NAME`."
    _show(rows, f"{none} ({where})", as_json=as_json)
    return 0


@teams.command("disable", epilog="Example: podium teams disable search")
async def disable_team(team: TeamName, place: AccountsPlace) -> int:
    """Reject all keys of a team. Every server applies this within 10 s."""
    return await _switch(team, place, on=False)


@teams.command("enable", epilog="Example: podium teams enable search")
async def enable_team(team: TeamName, place: AccountsPlace) -> int:
    """Accept the keys of a team again."""
    return await _switch(team, place, on=True)


async def _switch(team: str, place: AccountsPlace, *, on: bool) -> int:
    async with place.open() as (directory, _):
        name = (await directory.switch_team(team, on=on)).name
    print(f"Team {name!r} is {'enabled' if on else 'disabled'}. Servers apply this within 10 s.")
    return 0


@teams.command("budget", epilog="Example: podium teams budget search --per-day 5")
async def team_budget(
    team: TeamName, place: AccountsPlace, limits: BudgetLimits, as_json: JsonLines = False
) -> int:
    """Show or set the budget of a team."""
    async with place.open() as (directory, _):
        return await _budget(
            directory, team_subject((await directory.team(team)).id), limits, as_json=as_json
        )


@teams.command("policy", epilog="Example: podium teams policy search models=podium-mini")
async def team_policy(
    team: TeamName, place: AccountsPlace, fields: Fields = None, as_json: PolicyJson = False
) -> int:
    """Show or change the policy of a team."""
    async with place.open() as (directory, _):
        info = await directory.team(team)
        if fields:
            info = await directory.change_team_policy(info.id, _changes(fields, place))
        show_policy(info.policy, as_json=as_json)
    return 0


def _changes(fields: list[str], place: AccountsPlace) -> AccountPolicy:
    changes = read_fields(fields)
    check_against(place.settings, changes, has_server=place.server is not None)
    return changes


async def _budget(directory: Accounts, subject: str, limits: BudgetLimits, *, as_json: bool) -> int:
    await directory.set_budget(subject, limits.changes)
    _show([_budget_row(each) for each in await directory.budget(subject)], "", as_json=as_json)
    return 0


def _show_secret(key: ApiKey, about: str) -> None:
    """Print the secret on stdout and the rest on stderr, so that `KEY=$(podium keys create ...)` works."""
    print(
        f"{about} Copy the secret now. It is shown only once, because the store keeps only its hash:",
        file=sys.stderr,
    )
    print(key.reveal())


def _describe(key: KeyInfo) -> str:
    owner = f"team {key.team.name!r}" if key.team else "without a team"
    return f"{key.name!r} ({inert(key.id)}, …{inert(key.hint)}), {owner}, scopes {join(key.scopes)}"


def _row(key: KeyInfo, now_us: int) -> dict[str, str]:
    return {
        "id": key.id,
        "name": key.name,
        "hint": f"…{key.hint}",
        "team": key.team.name if key.team else "",
        "scopes": join(key.scopes),
        "state": key.state(now_us),
        "made": iso(key.made_us) or "",
        "expires": iso(key.expires_us) or "never",
    }


def _team_row(team: TeamInfo) -> dict[str, str]:
    state = "enabled" if team.off_us is None else "disabled"
    return {"id": team.id, "name": team.name, "state": state, "made": iso(team.made_us) or ""}


def _budget_row(window: Spending) -> dict[str, str]:
    limit = "none" if window.limit_usd is None else f"{window.limit_usd:f}"
    return {
        "period": window.period,
        "limit_usd": limit,
        "spent_usd": f"{window.spent_usd:f}",
        "held_usd": f"{window.held_usd:f}",
    }


def _show(rows: list[dict[str, str]], none: str, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print(inert_json(row))
    elif not rows:
        print(none)
    else:
        lines = table(*("created" if name == "made" else name for name in rows[0]))
        for row in rows:
            lines.add_row(*map(cell, row.values()))
        console().print(lines)
