"""`podium store`: create or migrate the store's schema, or check its version.

Modules that read settings and databases are imported only after the options are parsed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from podium.command_line.program import CommandError, Program

if TYPE_CHECKING:
    from serving.database.address import Address

SettingsFile = Annotated[
    Path | None,
    Option(
        "--settings",
        metavar="FILE",
        help="settings file whose section `store` names the store",
        show_default="default settings",
    ),
]
"""Option of the verbs that open the store."""
EXIT_CODES = "Exit code: 0 if the store has the schema of this version of Podium, else 1.\n\nExample: podium store check"
main = Program(
    "podium store",
    help="Manage the store of keys, budgets and the ledger. Its address is in the environment variable PODIUM_STORE_URL "
    "(setting store.url_env). If it is not set, the store is a SQLite file.",
    epilog=EXIT_CODES,
)


@main.command("migrate", epilog=EXIT_CODES)
def migrate(settings: SettingsFile = None) -> int:
    """Create the tables, or migrate them to the schema of this version of Podium. Back up the store first."""
    from serving.database.migrate import migrate

    with errors_in_one_line():
        address = address_of(settings)
        return _tell(address, asyncio.run(migrate(address)))


@main.command("check", epilog=EXIT_CODES)
def check(settings: SettingsFile = None) -> int:
    """Check that the store exists and has the schema of this version of Podium. Changes nothing."""
    from serving.database.migrate import check_version

    with errors_in_one_line():
        address = address_of(settings)
        return _tell(address, asyncio.run(check_version(address)))


@main.command("rotate-secret", epilog="Example: podium store rotate-secret")
def rotate(settings: SettingsFile = None) -> int:
    """Create a new secret for signing tool call ids. Ids signed with the previous secret stay valid until the
    next rotation.
    """
    with errors_in_one_line():
        return _rotate(address_of(settings))


@contextmanager
def errors_in_one_line() -> Generator[None]:
    """Convert an error of Podium, raised in the block, to one that ends the command with a single line."""
    from conductor.errors import PodiumError

    try:
        yield
    except PodiumError as error:
        raise CommandError(f"{error.message} {error.detail}".rstrip()) from error


def _tell(address: Address, version: object) -> int:
    print(f"The store {address.name} has schema {version}, which is that of this version of Podium.")
    return 0


def _rotate(address: Address) -> int:
    from serving.store.signing_secrets import ROTATE_S, rotate_secret

    asyncio.run(rotate_secret(address))
    print(
        f"Tool call ids are signed with the new secret within {ROTATE_S:g} s. Runs that wait for tools can still continue."
    )
    print(
        "The next rotation invalidates ids signed with the old secret. Wait for store.tools_wait_s before it, unless a secret has leaked."
    )
    return 0


def address_of(settings: Path | None) -> Address:
    """Return the address of the store that a settings file, or the default settings, names."""
    from serving.database.address import find_address
    from serving.settings.sections import StoreSettings
    from serving.settings.settings import load

    return find_address(load(settings).store if settings else StoreSettings(), os.environ)
