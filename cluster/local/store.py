"""No server starts on a store of another version of Podium."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from conductor.errors import StoreUnavailable
from serving.database.address import find_address
from serving.database.migrate import see_version
from serving.paths import resolve_path
from serving.settings.settings import load


def require_version(settings: str, environment: Mapping[str, str]) -> None:
    """See that the store of the file `settings`, where there is one, has the schema that is needed. One that is away
    is waited for by the server itself.

    Raises:
        StoreError: it has another, or refuses us. The message says which command helps.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    with suppress(StoreUnavailable):
        asyncio.run(see_version(address))
