"""No server listens beyond this machine until a key has been made."""

import asyncio
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from serving.accounts.directory import Directory
from serving.database.address import Address, find_address
from serving.paths import resolve_path
from serving.settings.settings import SettingsError, load


def require_key(host: str, settings: str, environment: Mapping[str, str]) -> None:
    """See that whoever reaches `host` will be asked for a key.

    Args:
        host: the IP address to listen on.
        settings: the file that says where keys are kept.
        environment: of the server.

    Raises:
        SettingsError: they would not. The message says how the first key is made.
        StoreError, StoreUnavailable: the store cannot be asked.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    if ip_address(host).is_loopback or asyncio.run(_has_keys(address)):
        return
    raise SettingsError(
        f"The address {host} can be reached from other machines, and no key has been made in the store {address.name}: "
        "whoever gets there could spend your money. Make the first key with "
        f"`podium keys create NAME --scopes admin --settings {settings}` and start again, or serve on 127.0.0.1."
    )


async def _has_keys(address: Address) -> bool:
    directory = Directory(address)
    try:
        return await directory.has_keys()
    finally:
        await directory.aclose()
