"""`podium teams policy` and `podium keys policy`: what a team or a key may do, shown and changed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from program.inert import inert, inert_json

if TYPE_CHECKING:
    from podium.accounts_cli import Accounts
    from serving.accounts.account_policy import AccountPolicy

NONE = "none"
"""What lifts a limit."""
OFF = ("max_effort", "tools")
"""Fields for which `none` means none at all, and which `any` lifts."""
NAMED = ("models", "workers", "exclude_workers", "providers", "regions")
"""Fields with names that the settings must have."""
LISTS = (*NAMED, "tools")


async def team_policy(directory: Accounts, options: argparse.Namespace) -> None:
    """Change and show what the keys of a team may do."""
    team = await directory.team(options.team)
    if options.fields:
        given = read_fields(options.fields)
        check_against(options, given)
        team = await directory.change_team_policy(team.id, given)
    _show(team.policy, options)


async def key_policy(directory: Accounts, options: argparse.Namespace) -> None:
    """Change and show what a key may do."""
    key = await directory.key(options.key)
    if options.fields:
        given = read_fields(options.fields)
        check_against(options, given)
        key = await directory.change_key_policy(key.id, given)
    _show(key.policy, options)


def read_fields(texts: list[str]) -> AccountPolicy:
    """The policy in `FIELD=VALUE ...`.

    Raises:
        BadTask: naming the field.
    """
    from pydantic import ValidationError

    from conductor.errors import BadTask
    from serving.accounts.account_policy import AccountPolicy

    known = AccountPolicy.model_fields
    given: dict[str, Any] = {}
    for text in texts:
        name, is_set, value = text.partition("=")
        if name not in known or not is_set:
            raise BadTask(
                f"{text!r} sets no field. Write FIELD=VALUE; there are {', '.join(known)}.", param=name
            )
        given[name] = _value(name, value, known[name].default)
    try:
        return AccountPolicy.model_validate(given)
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        field = str(fault["loc"][0])
        raise BadTask(f"{field}: {fault['msg']}.", param=field) from exc


def check_against(options: argparse.Namespace, given: AccountPolicy) -> None:
    """See that a policy names only what the settings have. A server (`--url`) checks it by itself.

    Raises:
        BadTask: naming the field, with a suggestion.
        SettingsError: the settings cannot be used.
    """
    if options.settings is not None:
        from serving.accounts.permission import check_names
        from serving.settings.settings import load

        return check_names(given, load(options.settings))
    named = [field for field in NAMED if getattr(given, field)]
    if named and options.url is None:
        print(
            f"The names in {', '.join(named)} were not checked: no settings were named. "
            "Add `--settings FILE`, or `--url URL` of the server.",
            file=sys.stderr,
        )
    return None


def _value(name: str, text: str, default: object) -> object:
    if text == "any" or (text == NONE and name not in OFF):
        return default
    if name == "tools" and text == NONE:
        return []
    return [part for part in text.split(",") if part] if name in LISTS else text


def _show(policy: AccountPolicy, options: argparse.Namespace) -> None:
    """What it says, and what it could."""
    stated = policy.stated()
    if options.json:
        return print(inert_json(stated))
    for name, field in type(policy).model_fields.items():
        value = stated.get(name)
        shown = "-" if value is None else ",".join(value) if isinstance(value, list) else str(value).lower()  # pyright: ignore[reportUnknownArgumentType]
        print(f"{name:21} {inert(shown):24} {field.description}")
    return None
