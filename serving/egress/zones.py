"""Zones of IP addresses (public, private, link-local), and IP addresses in unusual spellings.

This module does not depend on sockets or HTTP. Code that opens a connection must check the resolved address
that it connects to, because a name may resolve to a different address each time (DNS rebinding).
"""

import socket
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address


class Zone(StrEnum):
    """Zone of an address, from the least to the most sensitive one."""

    PUBLIC = "a public address"
    INSIDE = "a loopback, private or reserved address"
    LINK_LOCAL = "a link-local or cloud metadata address"


LINK_LOCAL = tuple(
    map(
        IPv4Network,
        (
            "169.254.0.0/16",  # AWS, GCP, Azure, OpenStack and others: instance metadata and credentials
            "100.100.100.200/32",  # Alibaba Cloud
            "192.0.0.192/32",  # Oracle Cloud
            "168.63.129.16/32",  # Azure's agent and its goal state, although the range is public
        ),
    )
)
LINK_LOCAL_6 = tuple(
    map(IPv6Network, ("fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128"))  # any; AWS; GCP
)
GLOBAL_UNICAST = IPv6Network("2000::/3")
"""Range of all IPv6 addresses that are routed on the internet today."""
NAT64 = IPv6Network("64:ff9b::/96")
"""Range of IPv6 addresses that contain an IPv4 address and lead to it, for IPv6-only networks (RFC 6052)."""
WITH_IPV4_INSIDE = tuple(
    map(
        IPv6Network,
        (
            "::/96",  # IPv4-compatible, long out of use
            "::ffff:0:0:0/96",  # translated (RFC 2765)
            "64:ff9b:1::/48",  # local-use NAT64 (RFC 8215)
        ),
    )
)


def zone_of(address: str) -> Zone:
    """Return the zone of an IP address, or of the IPv4 address in it. Raise ValueError for others."""
    return _zone(ip_address(address.partition("%")[0]))


def literal_address(host: str) -> str | None:
    """Return the IP address of a URL's host in any of the resolver's spellings, such as `2130706433`,
    `0x7f.1` and `0177.0.0.1`, or None for a name.
    """
    host = host.strip("[]")
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None


def _zone(address: IPv4Address | IPv6Address) -> Zone:
    if isinstance(address, IPv4Address):
        if any(address in network for network in LINK_LOCAL):
            return Zone.LINK_LOCAL
        return Zone.PUBLIC if address.is_global and not address.is_multicast else Zone.INSIDE
    if any(address in network for network in LINK_LOCAL_6):
        return Zone.LINK_LOCAL
    if address.ipv4_mapped is not None:
        return _zone(address.ipv4_mapped)
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if address in NAT64:
        return _zone(last)
    wrapped = [address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in WITH_IPV4_INSIDE):
        wrapped.append(last)
    inner = [_zone(each) for each in wrapped if each is not None]
    if inner:
        # No server uses these forms today, so they are never public. The embedded address decides the zone.
        return Zone.LINK_LOCAL if Zone.LINK_LOCAL in inner else Zone.INSIDE
    return Zone.PUBLIC if address in GLOBAL_UNICAST and address.is_global else Zone.INSIDE
