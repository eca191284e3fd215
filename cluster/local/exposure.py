"""Check that a server accepts connections from other machines only if an API key exists."""

import asyncio
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from serving import resolve_path
from serving.accounts.directory import Directory
from serving.database.address import Address, find_address
from serving.settings.settings import SettingsError, load


def require_key(host: str, settings: str, environment: Mapping[str, str]) -> None:
    """Check that clients on other machines, if the address admits them, need an API key. The SettingsError
    says how to create the first one.
    """
    address = find_address(load(resolve_path(Path(settings))).store, environment)
    if ip_address(host).is_loopback or asyncio.run(_has_keys(address)):
        return
    raise SettingsError(
        f"Other machines can reach the address {host}, but the store {address.name} has no API key, so "
        "anyone on the network could use the server. Create the first key with "
        f"`podium keys create NAME --scopes admin --settings {settings}`, or listen on 127.0.0.1."
    )


async def _has_keys(address: Address) -> bool:
    directory = Directory(address)
    try:
        return await directory.has_keys()
    finally:
        await directory.aclose()
