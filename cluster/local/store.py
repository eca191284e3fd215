"""Check that a server starts only on a store of its own version of Podium."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from conductor.errors import StoreUnavailable
from serving import resolve_path
from serving.database.address import find_address
from serving.database.migrate import see_version
from serving.settings.settings import load


def require_version(settings: str, environment: Mapping[str, str]) -> None:
    """Check that the store of the file `settings`, if there is one, has the required schema.

    A store that is unavailable passes: the server itself waits for it.

    Raises:
        StoreError: the store has another version, or rejects this account. The message says which command
            helps.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    with suppress(StoreUnavailable):
        asyncio.run(see_version(address))
