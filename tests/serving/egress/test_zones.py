"""Zones of addresses, in every notation."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.egress.reach import ANYWHERE, REQUESTS, SETTINGS, AddressForbidden, reach_of_hosts
from serving.egress.zones import Zone, literal_address, zone_of

V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
INSIDE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "240.0.0.1",
    "255.255.255.255", "224.0.0.1", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1",
    "64:ff9b:1::8.8.8.8", "2002:7f00:1::", "2002:808:808::", "2001:db8::1", "2001:0:808:808::1", "fc00::1", "fec0::1", "ff02::1",
    "::ffff:0:8.8.8.8",
]  # fmt: skip
LINK_LOCAL = [
    "169.254.169.254", "169.254.170.2", "169.254.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fe80::1", "fe80::1%eth0",
    "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::",
    "::169.254.169.254",
]  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "addresses"),
    [(Zone.PUBLIC, PUBLIC), (Zone.INSIDE, INSIDE), (Zone.LINK_LOCAL, LINK_LOCAL)],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_every_address_has_the_expected_zone(zone: Zone, addresses: list[str]) -> None:
    assert {address: zone_of(address) for address in addresses} == dict.fromkeys(addresses, zone)


@given(V4)
def test_an_embedded_address_has_the_zone_of_the_inner_address(address: IPv4Address) -> None:
    number, plain = int(address), zone_of(str(address))
    mapped, nat64 = (IPv6Address((prefix << 32) | number) for prefix in (0xFFFF, 0x64FF9B << 64))
    assert zone_of(str(mapped)) == zone_of(str(nat64)) == plain
    outdated = [IPv6Address((0x2002 << 112) | (number << 80)), IPv6Address((0xFFFF << 48) | number)]
    if number > 0xFFFF:  # a smaller number is written like `::1`
        outdated.append(IPv6Address(number))
    for each in outdated:
        expected = Zone.LINK_LOCAL if plain is Zone.LINK_LOCAL else Zone.INSIDE
        assert zone_of(str(each)) == expected, each


@given(V4)
def test_every_notation_of_an_address_is_parsed(address: IPv4Address) -> None:
    number, (a, b, c, d) = int(address), address.packed
    spellings = [
        str(address), str(number), hex(number), f"0{number:o}", f"{a}.{b}.{c * 256 + d}", f"{a}.{number & 0xFFFFFF}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
    ]  # fmt: skip
    assert {literal_address(spelling) for spelling in spellings} == {str(address)}


@pytest.mark.parametrize(
    "name", ["example.com", "localhost", "127.0.0.1.nip.io", "a1", "1.2.3.4.5", "::g", ""]
)
def test_a_host_name_is_not_an_address(name: str) -> None:
    assert literal_address(name) is None


def test_a_reach_permits_its_zones_and_names_a_forbidden_one() -> None:
    for address in PUBLIC:
        REQUESTS.check(address)
    for address in [*PUBLIC, *INSIDE]:
        SETTINGS.check(address)
    for address in [*PUBLIC, *INSIDE, *LINK_LOCAL]:
        ANYWHERE.check(address)
    for reach, beyond in ((REQUESTS, [*INSIDE, *LINK_LOCAL]), (SETTINGS, LINK_LOCAL)):
        for address in beyond:
            with pytest.raises(AddressForbidden, match="metadata" if address in LINK_LOCAL else "private"):
                reach.check(address, "some.example")


def test_this_machines_public_address_counts_as_internal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.egress.reach._is_own", lambda address: address == "93.184.216.34")
    SETTINGS.check("93.184.216.34")
    REQUESTS.check("93.184.216.35")
    with pytest.raises(AddressForbidden):
        REQUESTS.check("93.184.216.34")


def test_a_configured_host_is_an_exact_address_or_a_public_name() -> None:
    reach = reach_of_hosts(["pictures.example", "10.1.2.3"])
    reach.check("10.1.2.3", "10.1.2.3")
    reach.check("93.184.216.34", "pictures.example")
    for address in ("10.1.2.4", "127.0.0.1", "169.254.169.254"):
        with pytest.raises(AddressForbidden):
            reach.check(address, "pictures.example")
