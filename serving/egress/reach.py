"""Addresses that a connection may go to, by the source of the address."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from serving.egress.names import NAMES, Found
from serving.egress.zones import Zone, literal_address, zone_of


class AddressForbidden(Exception):
    """Connection to a forbidden address. The message contains the address and is meant for the operator."""

    def __init__(self, host: str, address: str, zone: Zone) -> None:
        super().__init__(f"{host} resolves to {address}, {zone}" if host != address else f"{host} is {zone}")
        self.zone = zone


@dataclass(frozen=True, slots=True)
class Reach:
    """Set of addresses that a client may connect to."""

    zones: frozenset[Zone]
    addresses: frozenset[str] = frozenset()
    """Single addresses that are allowed in addition, in the form of `literal_address`."""

    def check(self, address: str, host: str = "") -> None:
        """Check the IP address of `host`.

        Raises:
            AddressForbidden: it is out of reach.
        """
        zone = zone_of(address)
        if zone in self.zones and Zone.INSIDE not in self.zones and _is_own(address):
            zone = Zone.INSIDE  # this machine's public address leads to its internal ports too
        if zone not in self.zones and address not in self.addresses:
            raise AddressForbidden(host or address, address, zone)

    def check_host(self, host: str) -> None:
        """Check the host of a URL. A name passes; an address, in any spelling, must be within reach.

        Raises:
            AddressForbidden: it is an address out of reach.
        """
        address = literal_address(host)
        if address is not None:
            self.check(address, host)

    def check_name(self, host: str) -> None:
        """Check all current addresses of `host`, for libraries that connect on their own later. A host
        without an address passes.

        Raises:
            AddressForbidden: one of them is out of reach.
        """
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for *_, sockaddr in entries:
            self.check(str(sockaddr[0]), host)

    async def resolve(self, host: str) -> Found:
        """Return the addresses of `host`, all within reach.

        Raises:
            AddressForbidden: one is out of reach; a legitimate name has no such address among others.
            OSError: the host has no address.
        """
        addresses = await NAMES.find(host)
        for _, address in addresses:
            self.check(address, host)
        return addresses


REQUESTS = Reach(frozenset({Zone.PUBLIC}))
"""Reach of addresses from requests and models, and of those that they lead to."""
SETTINGS = Reach(frozenset({Zone.PUBLIC, Zone.INSIDE}))
"""Reach of addresses from the settings and the server's environment, proxies included. Naming an address
there permits it."""
ANYWHERE = Reach(frozenset(Zone))
"""Reach of addresses for which the settings set `allow_link_local`."""


def reach_of_hosts(hosts: Iterable[str]) -> Reach:
    """Return the reach of addresses from requests whose host is one of `hosts`, which the settings name. A
    name permits public addresses; an address permits itself.
    """
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
