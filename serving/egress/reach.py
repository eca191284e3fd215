"""Sets of addresses that the server may connect to, by the source that names an address."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from serving.egress.names import NAMES, Addresses
from serving.egress.zones import Zone, literal_address, zone_of


class AddressForbidden(Exception):
    """The address is not allowed. The message contains the address and is meant for the operator."""

    def __init__(self, host: str, address: str, zone: Zone) -> None:
        super().__init__(f"{host} resolves to {address}, {zone}" if host != address else f"{host} is {zone}")
        self.zone = zone


@dataclass(frozen=True, slots=True)
class Reach:
    """Set of addresses that a client may connect to."""

    zones: frozenset[Zone]
    addresses: frozenset[str] = frozenset()
    """Further single addresses that are allowed, in the form that `literal_address` returns."""

    def check(self, address: str, host: str = "") -> None:
        """Check an IP address, or raise AddressForbidden, which shows `host`."""
        zone = zone_of(address)
        if zone in self.zones and Zone.INSIDE not in self.zones and _is_own(address):
            zone = Zone.INSIDE  # this machine's public address leads to its internal ports too
        if zone not in self.zones and address not in self.addresses:
            raise AddressForbidden(host or address, address, zone)

    def check_host(self, host: str) -> None:
        """Check the host of a URL before its name is resolved: an IP address in any spelling. A name passes.
        Raise AddressForbidden.
        """
        address = literal_address(host)
        if address is not None:
            self.check(address, host)

    def check_name(self, host: str) -> None:
        """Check all current addresses of `host`, or raise AddressForbidden, for libraries that connect
        themselves, so that later lookups cannot be checked. A host without one passes.
        """
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for *_, sockaddr in entries:
            self.check(str(sockaddr[0]), host)

    async def resolve(self, host: str) -> Addresses:
        """Return the addresses of `host`. Raise AddressForbidden if any of them is not allowed, or OSError if
        there is none.
        """
        addresses = await NAMES.find(host)
        for _, address in addresses:
            self.check(address, host)
        return addresses


REQUESTS = Reach(frozenset({Zone.PUBLIC}))
"""Addresses that may be connected to if a request or a model names them, or a page that they lead to."""
SETTINGS = Reach(frozenset({Zone.PUBLIC, Zone.INSIDE}))
"""Addresses that may be connected to if the settings or the environment of the server name them, including
proxies. Private addresses are allowed too, because the operator chose them."""
ANYWHERE = Reach(frozenset(Zone))
"""All addresses, for settings with `allow_link_local`."""


def reach_of_hosts(hosts: Iterable[str]) -> Reach:
    """Return the addresses of allowed hosts. An IP address allows itself, a name only public ones."""
    literals = (literal_address(host) for host in hosts)
    return Reach(REQUESTS.zones, frozenset(address for address in literals if address is not None))


def _is_own(address: str) -> bool:
    """Return whether a network interface of this machine has the address."""
    own = (each for interface in psutil.net_if_addrs().values() for each in interface)
    return ip_address(address) in {
        ip_address(each.address.partition("%")[0])
        for each in own
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }
