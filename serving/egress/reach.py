"""How far a connection may go, by who named its address."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from serving.egress.names import NAMES, Found
from serving.egress.zones import Zone, literal_address, zone_of


class AddressForbidden(Exception):
    """A connection would have gone further than it may. For the operator: the message names the address."""

    def __init__(self, host: str, address: str, zone: Zone) -> None:
        super().__init__(f"{host} is at {address}, {zone}" if host != address else f"{host} is {zone}")
        self.zone = zone


@dataclass(frozen=True, slots=True)
class Reach:
    """Which addresses may be connected to."""

    zones: frozenset[Zone]
    addresses: frozenset[str] = frozenset()
    """Single addresses that may be connected to besides; as `literal_address` writes them."""

    def check(self, address: str, host: str = "") -> None:
        """Let `address` pass, the IP address of `host`.

        Raises:
            AddressForbidden: it is further than this.
        """
        zone = zone_of(address)
        if zone in self.zones and Zone.INSIDE not in self.zones and _is_own(address):
            zone = Zone.INSIDE  # this machine by its public address: its own ports are behind that too
        if zone not in self.zones and address not in self.addresses:
            raise AddressForbidden(host or address, address, zone)

    def check_host(self, host: str) -> None:
        """Let the host of a URL pass if it is a name, or an address within reach in whatever spelling.

        Raises:
            AddressForbidden: it is an address beyond.
        """
        address = literal_address(host)
        if address is not None:
            self.check(address, host)

    def check_name(self, host: str) -> None:
        """Let `host` pass if every address that it has now passes; also one that has none. For what connects
        by itself, later.

        Raises:
            AddressForbidden: one does not pass.
        """
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for *_, sockaddr in found:
            self.check(str(sockaddr[0]), host)

    async def resolve(self, host: str) -> Found:
        """The addresses of `host`, every one of which passes.

        Raises:
            AddressForbidden: one does not: an honest name has no such address among others.
            OSError: it has none.
        """
        found = await NAMES.find(host)
        for _, address in found:
            self.check(address, host)
        return found


REQUESTS = Reach(frozenset({Zone.PUBLIC}))
"""Of addresses from requests, from models and from what they lead to."""
SETTINGS = Reach(frozenset({Zone.PUBLIC, Zone.INSIDE}))
"""Of addresses from settings and from the server's environment, its proxies included: to name one is to
permit it."""
ANYWHERE = Reach(frozenset(Zone))
"""Of those for which settings say `allow_link_local` besides."""


def reach_of_hosts(hosts: Iterable[str]) -> Reach:
    """Of addresses from requests whose host is one of `hosts` that settings name: a name permits public
    addresses, an address itself.
    """
    named = (literal_address(host) for host in hosts)
    return Reach(REQUESTS.zones, frozenset(address for address in named if address is not None))


def _is_own(address: str) -> bool:
    """Whether a network interface of this machine has the address."""
    own = (each for interface in psutil.net_if_addrs().values() for each in interface)
    return ip_address(address) in {
        ip_address(each.address.partition("%")[0])
        for each in own
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }
