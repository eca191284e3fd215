"""`podium keys` and `podium teams`.

They change the store directly, so they work before the first key exists and while no server runs. With
`--url` they use a server's admin API instead. Running servers apply a change within 10 s.

Modules that read settings and databases are imported only after the options are parsed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from podium.client import KEY_VARIABLE, URL_VARIABLE, Client, ClientError, tell
from podium.command_line.options import option, url, usd
from podium.command_line.terminal import inert, inert_json
from podium.policy_cli import key_policy, team_policy
from podium.store_cli import add_settings, address_of
from serving.accounts.caller import DEFAULT_SCOPES, join, parse_scopes
from serving.accounts.key_info import US, KeyInfo, TeamInfo, iso
from serving.accounts.keys import ApiKey
from serving.accounts.rates import Period, key_subject, team_subject

if TYPE_CHECKING:
    from typing import TypeAlias

    from podium.remote_directory import RemoteDirectory
    from serving.accounts.budgets import Spending
    from serving.accounts.directory import Directory

    Accounts: TypeAlias = Directory | RemoteDirectory

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_S = 100 * 365 * UNITS_S["d"]
Command = Callable[["Accounts", argparse.Namespace], Awaitable[None]]


@option
def duration_s(text: str) -> float:
    """Parse a duration such as `90d` or `36h`."""
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f"{text!r} is not a duration. Write a number and one of {', '.join(UNITS_S)}, as in 90d"
        )
    if (duration := int(match[1]) * UNITS_S[match[2]]) > MOST_S:
        raise ValueError(f"{text!r} is longer than the maximum of 100 years")
    return float(duration)


LIFTED = Decimal(-1)
"""Value of `none`. argparse uses None for an option that is not set."""


def limit_usd(text: str) -> Decimal:
    """Parse an amount of dollars, or `none`."""
    return LIFTED if text == "none" else usd(text)


def keys(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="podium keys",
        description="Create, list, revoke and rotate API keys.",
        epilog="example: podium keys create search-app --team search --expires 90d",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = _command(commands, "create", create_key, "create a key and print its secret once")
    create.add_argument("name", help="what the key is for")
    create.add_argument(
        "--team", help="name or id of the team whose runs it sees (default: only its own runs)"
    )
    create.add_argument(
        "--scopes",
        type=option(parse_scopes),
        default=DEFAULT_SCOPES,
        metavar="SCOPES",
        help="comma-separated: run (call models), read (see the team's runs), admin (everything) (default: run,read)",
    )
    create.add_argument(
        "--expires",
        type=duration_s,
        metavar="TIME",
        help="lifetime, such as 90d or 36h (default: never expires)",
    )
    listed = _command(commands, "list", list_keys, "list keys, newest first")
    listed.add_argument("--team", help="only keys of this team, by name or id")
    listed.add_argument("--all", action="store_true", help="include revoked and expired keys")
    listed.add_argument("--json", action="store_true", help="print one JSON object per line")
    revoke = _command(commands, "revoke", revoke_key, "revoke a key; every server rejects it within 10 s")
    revoke.add_argument("key", help="id or name of the key")
    rotate = _command(commands, "rotate", rotate_key, "give a key a new secret and print it once")
    rotate.add_argument("key", help="id or name of the key")
    rotate.add_argument(
        "--overlap", type=duration_s, default=0.0, metavar="TIME", help="how long the old secret stays valid, such as 1h (default: not at all)"
    )  # fmt: skip
    _budget_command(commands, "key", key_budget)
    _policy_command(commands, "key", key_policy)
    return _run(parser.parse_args(arguments))


def teams(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="podium teams",
        description="Manage teams. Keys of a team see each other's runs and no other team's.",
        epilog="example: podium teams create search",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = _command(commands, "create", create_team, "create a team")
    create.add_argument("name", help="unique name of the team")
    listed = _command(commands, "list", list_teams, "list teams, oldest first")
    listed.add_argument("--json", action="store_true", help="print one JSON object per line")
    for name, on in (("disable", False), ("enable", True)):
        help = "accept its keys again" if on else "reject all of its keys; every server follows within 10 s"
        switch = _command(commands, name, switch_team, help)
        switch.add_argument("team", help="name or id of the team")
        switch.set_defaults(on=on)
    _budget_command(commands, "team", team_budget)
    _policy_command(commands, "team", team_policy)
    return _run(parser.parse_args(arguments))


async def create_key(directory: Accounts, options: argparse.Namespace) -> None:
    """Create a key and print its secret."""
    expires_us = None if options.expires is None else int((time.time() + options.expires) * US)
    key, info = await directory.create_key(options.name, options.team, options.scopes, expires_us)
    _show_secret(key, f"Created key {_describe(info)} in {options.where}.")


async def list_keys(directory: Accounts, options: argparse.Namespace) -> None:
    """Print keys."""
    now_us = int(time.time() * US)
    keys = await directory.keys(options.team)
    shown = [key for key in keys if options.all or key.state(now_us) not in ("revoked", "expired")]
    rows = [_row(key, now_us) for key in shown]
    _show(
        rows, "There are no keys." if not keys else "No key is active. Use --all to list the others.", options
    )


async def revoke_key(directory: Accounts, options: argparse.Namespace) -> None:
    revoked = await directory.revoke(options.key)
    print(f"Revoked key {_describe(revoked)}. Servers reject it within 10 s.")


async def rotate_key(directory: Accounts, options: argparse.Namespace) -> None:
    """Give a key a new secret and print it."""
    key, rotated = await directory.rotate(options.key, options.overlap)
    until = (
        f"stays valid until {iso(int((time.time() + options.overlap) * US))}"
        if options.overlap
        else "is rejected within 10 s"
    )
    _show_secret(key, f"New secret for key {_describe(rotated)}. The old secret {until}.")


async def create_team(directory: Accounts, options: argparse.Namespace) -> None:
    team = await directory.create_team(options.name)
    print(
        f"Created team {team.name!r} ({inert(team.id)}). Next: podium keys create NAME --team {team.name!r}"
    )


async def list_teams(directory: Accounts, options: argparse.Namespace) -> None:
    """Print teams."""
    rows = [_team_row(team) for team in await directory.teams()]
    _show(rows, "There are no teams. Create one with `podium teams create NAME`.", options)


async def switch_team(directory: Accounts, options: argparse.Namespace) -> None:
    """Enable or disable a team."""
    team = await directory.switch_team(options.team, on=options.on)
    print(f"Team {team.name!r} is {'enabled' if options.on else 'disabled'}. Servers apply this within 10 s.")


async def key_budget(directory: Accounts, options: argparse.Namespace) -> None:
    """Set or show the budget of a key."""
    await _budget(directory, options, key_subject((await directory.key(options.key)).id))


async def team_budget(directory: Accounts, options: argparse.Namespace) -> None:
    """Set or show the budget of a team."""
    await _budget(directory, options, team_subject((await directory.team(options.team)).id))


async def _budget(directory: Accounts, options: argparse.Namespace, subject: str) -> None:
    requested: dict[Period, Decimal | None] = {"day": options.per_day, "month": options.per_month}
    limits: dict[Period, Decimal | None] = {}
    for period, limit in requested.items():
        if limit is not None:
            limits[period] = None if limit == LIFTED else limit
    await directory.set_budget(subject, limits)
    rows = [_budget_row(each) for each in await directory.budget(subject)]
    _show(rows, "", options)


def _budget_command(commands: Any, whose: str, run: Command) -> None:
    budget = _command(commands, "budget", run, f"show or set the budget of a {whose}")
    budget.add_argument(whose, help=f"name or id of the {whose}")
    for period in ("day", "month"):
        budget.add_argument(
            f"--per-{period}", type=limit_usd, metavar="USD", help=f"limit per {period} (UTC), or `none`"
        )
    budget.add_argument("--json", action="store_true", help="print one JSON object per line")


def _policy_command(commands: Any, whose: str, run: Command) -> None:
    policy = _command(commands, "policy", run, f"show or change the policy of a {whose}")
    policy.add_argument(whose, help=f"name or id of the {whose}")
    policy.add_argument(
        "fields",
        nargs="*",
        metavar="FIELD=VALUE",
        help="fields to change, such as models=podium-mini,podium-ultra local_only=true max_cost_usd=0.50; `any` lifts a limit",
    )
    policy.add_argument("--json", action="store_true", help="print one JSON object")


def _command(commands: Any, name: str, run: Command, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")  # fmt: skip
    add_settings(parser)
    parser.add_argument(
        "--url",
        type=url,
        default=_server_of_environment(),
        help=f"use this server's admin API instead of the store, with an administrator's key in {KEY_VARIABLE} (default: {URL_VARIABLE}, if "
        f"{KEY_VARIABLE} is set too)",
    )
    parser.set_defaults(run=run)
    return parser


def _server_of_environment() -> str | None:
    """Return the server in `PODIUM_URL` if a key is set too. Without a key, use the store: that is how the
    first key is created.
    """
    return os.environ.get(URL_VARIABLE) if os.environ.get(KEY_VARIABLE) else None


def _run(options: argparse.Namespace) -> int:
    from conductor.errors import PodiumError

    try:
        asyncio.run(_with_directory(options))
    except PodiumError as error:
        print(f"{error.message} {error.detail}".rstrip(), file=sys.stderr)
        return 1
    except ClientError as error:
        tell(error)
        return error.exit_code
    return 0


async def _with_directory(options: argparse.Namespace) -> None:
    directory = _open(options)
    try:
        await options.run(directory, options)
    finally:
        await directory.aclose()


def _open(options: argparse.Namespace) -> Accounts:
    is_named = options.url not in (None, _server_of_environment())
    if is_named and options.settings is not None:
        raise ClientError("--url and --settings name two different places. Use only one of them.")
    if options.url is not None and options.settings is None:
        options.where = options.url
        from podium.remote_directory import RemoteDirectory

        return RemoteDirectory(Client.of(options))
    from serving.accounts.directory import Directory

    address = address_of(options.settings)
    options.where = f"the store {address.name}"
    if URL_VARIABLE in os.environ and KEY_VARIABLE not in os.environ:
        print(
            f"Using {options.where}: {URL_VARIABLE} is ignored unless {KEY_VARIABLE} is set too.",
            file=sys.stderr,
        )
    return Directory(address)


def _show_secret(key: ApiKey, about: str) -> None:
    """Print only the secret on standard output, for `KEY=$(podium keys create ...)`."""
    print(f"{about} The secret is shown only once; the store keeps its hash:", file=sys.stderr)
    print(key.reveal())


def _describe(key: KeyInfo) -> str:
    owner = f"team {key.team.name!r}" if key.team else "no team"
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


def _show(rows: list[dict[str, str]], none: str, options: argparse.Namespace) -> None:
    if options.json:
        for row in rows:
            print(inert_json(row))
    elif not rows:
        print(f"{none} ({options.where})" if none else "")
    else:
        lines = [list(rows[0]), *([inert(value) for value in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
