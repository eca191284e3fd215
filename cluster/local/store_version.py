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
    """Check that the store has this version's schema. A missing or unavailable one passes, because the server
    waits for it. The StoreError names the command to run.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    with suppress(StoreUnavailable):
        asyncio.run(see_version(address))
