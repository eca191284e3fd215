"""Read and show policies on the command line, for `podium teams policy` and `podium keys policy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.command_line.terminal import inert, inert_json

if TYPE_CHECKING:
    from serving.accounts.account_policy import AccountPolicy

NONE = "none"
"""Value that lifts a limit."""
OFF = ("max_effort", "tools")
"""Fields for which `none` forbids everything, so that only `any` lifts their limit."""
NAMED = ("models", "workers", "exclude_workers", "providers", "regions")
"""Fields whose values are names that must exist in the settings."""
LISTS = (*NAMED, "tools")


def read_fields(texts: list[str]) -> AccountPolicy:
    """Parse a list of `FIELD=VALUE` as a policy. The BadTask's `param` names an invalid field."""
    from pydantic import ValidationError

    from conductor.errors import BadTask
    from serving.accounts.account_policy import AccountPolicy

    fields = AccountPolicy.model_fields
    values: dict[str, Any] = {}
    for text in texts:
        name, is_set, value = text.partition("=")
        if name not in fields or not is_set:
            raise BadTask(
                f"{text!r} is not a valid policy change. Use FIELD=VALUE, where FIELD is one of: {', '.join(fields)}.",
                param=name,
            )
        values[name] = _value(name, value, fields[name].default)
    try:
        return AccountPolicy.model_validate(values)
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        field = str(fault["loc"][0])
        raise BadTask(f"{field}: {fault['msg']}.", param=field) from exc


def check_against(settings: Path | None, policy: AccountPolicy, *, has_server: bool) -> None:
    """Check that a policy's names are in the settings, with a note if there are none. A server checks by
    itself. The error suggests a similar name.
    """
    if settings is not None:
        from serving.accounts.account_policy import check_names
        from serving.settings.settings import load

        return check_names(policy, load(settings))
    named = [field for field in NAMED if getattr(policy, field)]
    if named and not has_server:
        print(
            f"The names in {', '.join(named)} are not checked, because no settings file was given. "
            "To check them, add `--settings FILE`, or `--url URL` of a server.",
            file=sys.stderr,
        )
    return None


def _value(name: str, text: str, default: object) -> object:
    if text == "any" or (text == NONE and name not in OFF):
        return default
    if name == "tools" and text == NONE:
        return []
    return [part for part in text.split(",") if part] if name in LISTS else text


def show_policy(policy: AccountPolicy, *, as_json: bool) -> None:
    """Print each field with its description and its value, or "-" if it has no value."""
    stated = policy.stated()
    if as_json:
        return print(inert_json(stated))
    for name, field in type(policy).model_fields.items():
        value = stated.get(name)
        shown = "-" if value is None else ",".join(value) if isinstance(value, list) else str(value).lower()  # pyright: ignore[reportUnknownArgumentType]
        print(f"{name:21} {inert(shown):24} {field.description}")
    return None
