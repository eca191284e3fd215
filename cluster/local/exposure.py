"""Check that a server listens beyond this machine only if a key exists."""

import asyncio
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from serving import resolve_path
from serving.accounts.directory import Directory
from serving.database.address import Address, find_address
from serving.settings.settings import SettingsError, load


def require_key(host: str, settings: str, environment: Mapping[str, str]) -> None:
    """Check that every client that reaches `host` needs a key.

    Args:
        host: the IP address to listen on.
        settings: settings file, which names the store of keys.
        environment: environment of the server.

    Raises:
        SettingsError: clients on other machines would need no key. The message says how to create the first
            one.
        StoreError, StoreUnavailable: the store cannot be read.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    if ip_address(host).is_loopback or asyncio.run(_has_keys(address)):
        return
    raise SettingsError(
        f"The address {host} can be reached from other machines, but the store {address.name} has no key, so "
        "anyone could use the server at your expense. Create the first key with "
        f"`podium keys create NAME --scopes admin --settings {settings}`, or serve on 127.0.0.1."
    )


async def _has_keys(address: Address) -> bool:
    directory = Directory(address)
    try:
        return await directory.has_keys()
    finally:
        await directory.aclose()
