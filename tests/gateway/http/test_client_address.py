"""The client address: the nearest hop that is not a trusted proxy."""

from __future__ import annotations

import pytest

from gateway.http.client_address import parse_networks, resolve_client_address

TRUSTED_NETWORKS = parse_networks(["10.0.0.0/8", "127.0.0.1", "2001:db8:ffff::/48"])
TRUSTED_PROXY = "10.0.0.1"


def resolve_address(remote: str | None, *forwarded_headers: str) -> str | None:
    address = resolve_client_address(remote, forwarded_headers, TRUSTED_NETWORKS)
    return None if address is None else str(address)


@pytest.mark.parametrize(
    "hop",
    ["", "unknown", "_hidden", "198.51.100.7:", "198.51.100.7:http", "2001:db8::1:x", "[2001:db8::1",
     "[unknown]:80", "198.51.100", "198.51.0100.7", "198.51.100.0/24", "١٩٨.51.100.7", "'198.51.100.7'", "198.51.100.7 198.51.100.8", "999.1.1.1"],
)  # fmt: skip
def test_unreadable_hop_leaves_no_client_address(hop: str) -> None:
    assert resolve_address(TRUSTED_PROXY, f"192.0.2.1, {hop}") is None
    assert resolve_address("192.0.2.1", hop) == "192.0.2.1", (
        "a header of an untrusted peer is not read"
    )


def test_port_of_a_hop_is_ignored() -> None:
    assert resolve_address(TRUSTED_PROXY, "192.0.2.1, 198.51.100.7:80") == "198.51.100.7"
    assert resolve_address(TRUSTED_PROXY, "[2001:db8::1]:80, 10.0.0.2:443") == "2001:db8::1"
    assert resolve_address(TRUSTED_PROXY, "[2001:db8::1]") == "2001:db8::1"


@pytest.mark.parametrize("remote", [None, "", "/run/gateway.sock", "nonsense"])
def test_connection_without_address_has_no_client_address(remote: str | None) -> None:
    assert resolve_address(remote) is None
    assert resolve_address(remote, "198.51.100.7") is None, "and it is not a trusted proxy"


def test_ipv4_mapped_ipv6_address_is_treated_as_ipv4() -> None:
    assert resolve_address("::ffff:192.0.2.1") == "192.0.2.1"
    assert resolve_address("::ffff:10.0.0.1", "::ffff:198.51.100.7") == "198.51.100.7"
    assert resolve_address("::FFFF:c000:201") == "192.0.2.1"


def test_zone_of_link_local_address_is_ignored() -> None:
    assert resolve_address("fe80::1%eth0") == "fe80::1"


def test_ipv6_address_is_never_in_ipv4_network() -> None:
    assert resolve_address("2001:db8::1", "198.51.100.7") == "2001:db8::1"
    assert resolve_address("::a00:1", "198.51.100.7") == "::a00:1", "10.0.0.1 without the mapping"


def test_address_with_host_bits_is_its_network() -> None:
    assert [str(network) for network in parse_networks(["10.1.2.3/8", "2001:db8::7/32"])] == [
        "10.0.0.0/8",
        "2001:db8::/32",
    ]
    with pytest.raises(ValueError, match="nonsense"):
        parse_networks(["nonsense"])


def test_long_hop_list_is_read_from_its_end() -> None:
    hops = ", ".join(["10.0.0.9"] * 2000)
    assert resolve_address(TRUSTED_PROXY, f"198.51.100.7, {hops}") == "198.51.100.7"
