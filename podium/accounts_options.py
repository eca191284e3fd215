"""Options of `podium keys` and `podium teams`: durations, limits, and the store or server to use."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from typer import Option

from podium.client import KEY_VARIABLE, URL_VARIABLE, Client, ClientError
from podium.command_line.options import option, parse_url, parse_usd
from podium.store_cli import SettingsFile, address_of, errors_in_one_line
from serving.accounts.hold import Period

if TYPE_CHECKING:
    from typing import TypeAlias

    from podium.remote_directory import RemoteDirectory
    from serving.accounts.directory import Directory

    Accounts: TypeAlias = Directory | RemoteDirectory

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_S = 100 * 365 * UNITS_S["d"]
LIFTED = Decimal(-1)
"""Value of a limit option that is `none`, which removes the limit. None means that the option is not set."""


@option
def duration_s(text: str) -> float:
    """Parse a duration such as `90d` or `36h`, and return it in seconds."""
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f"{text!r} is not a duration. Use a number above 0 followed by one of the units {', '.join(UNITS_S)}, such as 90d"
        )
    if (duration := int(match[1]) * UNITS_S[match[2]]) > MOST_S:
        raise ValueError(f"{text!r} is longer than 100 years")
    return float(duration)


@option
def lifetime_s(text: str) -> float:
    """Parse a duration, or `never`."""
    return math.inf if text == "never" else duration_s(text)


@option
def limit_usd(text: str) -> Decimal:
    """Parse an amount of dollars, or `none`."""
    return LIFTED if text == "none" else parse_usd(text)


@dataclass(frozen=True, slots=True)
class AccountsPlace:
    """Command-line options that select the store, or a server whose admin API is used instead."""

    settings: SettingsFile = None
    url: Annotated[
        str | None,
        Option(
            parser=parse_url,
            help=f"use this server's admin API instead of the store, with an administrator's key in {KEY_VARIABLE}",
            show_default=f"{URL_VARIABLE}, if {KEY_VARIABLE} is also set",
        ),
    ] = None

    @property
    def server(self) -> str | None:
        """Address of the server, or None for the store. Without a key, `PODIUM_URL` is ignored, so that the
        first key can be created.
        """
        preset = os.environ.get(URL_VARIABLE) if os.environ.get(KEY_VARIABLE) else None
        if self.settings is None:
            return self.url or (preset and parse_url(preset))
        if self.url not in (None, preset):
            raise ClientError(
                "--url and --settings cannot be used together. Use --url for a server, or --settings for the store of a settings file."
            )
        return None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Accounts, str]]:
        """Open the store or the server. Yield its keys and teams, and its name for messages."""
        with errors_in_one_line():
            directory, name = self._connect()
            try:
                yield directory, name
            finally:
                await directory.aclose()

    def _connect(self) -> tuple[Accounts, str]:
        if server := self.server:
            from podium.remote_directory import RemoteDirectory

            return RemoteDirectory(Client.open(server)), server
        from serving.accounts.directory import Directory

        address = address_of(self.settings)
        name = f"the store {address.name}"
        if URL_VARIABLE in os.environ and KEY_VARIABLE not in os.environ:
            print(
                f"Using {name}, because {URL_VARIABLE} is ignored unless {KEY_VARIABLE} is also set.",
                file=sys.stderr,
            )
        return Directory(address), name


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Command-line options for budget limits. None leaves a limit unchanged."""

    per_day: Annotated[
        Decimal | None, Option(parser=limit_usd, metavar="USD", help="limit per day (UTC), or `none`")
    ] = None
    per_month: Annotated[
        Decimal | None, Option(parser=limit_usd, metavar="USD", help="limit per month (UTC), or `none`")
    ] = None

    @property
    def changes(self) -> dict[Period, Decimal | None]:
        """Limits to change, by period. None removes a limit."""
        limits: dict[Period, Decimal | None] = {"day": self.per_day, "month": self.per_month}
        return {
            period: None if limit == LIFTED else limit
            for period, limit in limits.items()
            if limit is not None
        }
