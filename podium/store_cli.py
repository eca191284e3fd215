"""`podium store`: make or migrate the store's schema, or say whether it is this version's.

What reads settings and databases is imported after the options are read.
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
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium store",
        description="Looks after the store of keys, budgets and the ledger. Its address is in the variable PODIUM_STORE_URL "
        "(store.url_env of the settings); where it is not set, the store is a SQLite file.",
        epilog="Exit code: 0 where the store has this version's schema, 1 where not. Example: podium store check",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{migrate,check,rotate-secret}")
    migrate = verbs.add_parser(
        "migrate", help="make the tables, or bring them to this version; back up first"
    )
    check = verbs.add_parser("check", help="is it there, and of this version? changes nothing")
    rotate = verbs.add_parser(
        "rotate-secret",
        help="a new secret for the ids of tool calls; those that the last one signed stay valid until the next rotation",
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
    print(f"The store {address.name} has schema {version}, which this Podium uses.")
    return 0


def _rotate(address: Address) -> int:
    from serving.runs.secret_rotation import rotate_secret
    from serving.runs.suspended import ROTATE_S

    asyncio.run(rotate_secret(address))
    print(
        f"The ids of tool calls get a new signature in {ROTATE_S:g} s. Runs that wait can still be answered;"
    )
    print("rotating again ends that: wait for store.tools_wait_s first, unless a secret has leaked.")
    return 0


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The option that says where the store is."""
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings whose section `store` says where it is; default: the defaults",
    )


def address_of(settings: Path | None) -> Address:
    """The store that the settings in a file, or the defaults, name.

    Raises:
        SettingsError, StoreError: they cannot be used.
    """
    from serving.database.address import find_address
    from serving.settings.sections import StoreSettings
    from serving.settings.settings import load

    return find_address(load(settings).store if settings else StoreSettings(), os.environ)
