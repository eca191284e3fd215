"""Check, before a server starts, that its store has the schema of this version of Podium."""

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
    """Check that the store named in the settings file has the schema of this version of Podium.

    A store that does not exist yet passes. So does one that is unavailable, because the server waits for it.

    Raises:
        StoreError: the store has a different schema version, or rejects this account. The message names the
            command to run.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    with suppress(StoreUnavailable):
        asyncio.run(see_version(address))
