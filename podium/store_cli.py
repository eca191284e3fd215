"""`podium store`: create or migrate the store's schema, or check its version.

Modules that read settings and databases are imported only after the options are parsed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.database.address import Address


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="podium store",
        description="Manage the store of keys, budgets and the ledger. Its address is in the variable PODIUM_STORE_URL "
        "(setting store.url_env). Without it, the store is a SQLite file.",
        epilog="Exit code: 0 if the store has this version's schema, else 1. Example: podium store check",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{migrate,check,rotate-secret}")
    migrate = verbs.add_parser(
        "migrate", help="create the tables, or migrate them to this version; back up first"
    )
    check = verbs.add_parser(
        "check", help="check that the store exists and has this version's schema; changes nothing"
    )
    rotate = verbs.add_parser(
        "rotate-secret",
        help="create a new secret for tool call ids; ids signed with the previous one stay valid until the next rotation",
    )
    for verb in (migrate, check, rotate):
        add_settings(verb)
    options = parser.parse_args(arguments)

    from conductor.errors import PodiumError
    from serving.database.migrate import check_version
    from serving.database.migrate import migrate as migrate_to_newest

    try:
        address = address_of(options.settings)
        if options.verb == "rotate-secret":
            return _rotate(address)
        work = migrate_to_newest(address) if options.verb == "migrate" else check_version(address)
        version = asyncio.run(work)
    except PodiumError as error:
        print(f"podium store: {error.message} {error.detail}".rstrip(), file=sys.stderr)
        return 1
    print(f"The store {address.name} has schema {version}, the version that this Podium uses.")
    return 0


def _rotate(address: Address) -> int:
    from serving.store.signing_secrets import ROTATE_S, rotate_secret

    asyncio.run(rotate_secret(address))
    print(
        f"Tool call ids use the new signature in {ROTATE_S:g} s. Runs that wait for tools can still be answered."
    )
    print("Another rotation invalidates them: wait for store.tools_wait_s first, unless a secret has leaked.")
    return 0


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option `--settings`."""
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings file with a section `store` (default: default settings)",
    )


def address_of(settings: Path | None) -> Address:
    """Return the address of the store that a settings file, or the default settings, names.

    Raises:
        SettingsError, StoreError: the settings or the address cannot be used.
    """
    from serving.database.address import find_address
    from serving.settings.sections import StoreSettings
    from serving.settings.settings import load

    return find_address(load(settings).store if settings else StoreSettings(), os.environ)
