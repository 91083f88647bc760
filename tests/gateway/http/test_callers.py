"""The client address: the nearest hop that is not a trusted proxy."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from gateway.http.client_address import parse_networks, resolve_client_address

TRUSTED = parse_networks(["10.0.0.0/8", "127.0.0.1", "2001:db8:ffff::/48"])
PROXY = "10.0.0.1"


def told(remote: str | None, *forwarded: str) -> str | None:
    address = resolve_client_address(remote, forwarded, TRUSTED)
    return None if address is None else str(address)


def test_without_a_header_it_is_the_address_of_the_connection() -> None:
    assert told("192.0.2.1") == "192.0.2.1"
    assert told("2001:db8::1") == "2001:db8::1"


def test_a_proxy_without_a_header_is_the_client_itself() -> None:
    assert told(PROXY) == PROXY


def test_a_header_from_anybody_else_says_nothing() -> None:
    assert told("192.0.2.1", "198.51.100.7") == "192.0.2.1"
    assert told("2001:db8::1", "198.51.100.7") == "2001:db8::1"
    assert told("11.0.0.1", PROXY) == "11.0.0.1"


def test_behind_a_trusted_proxy_it_is_the_address_that_the_proxy_saw() -> None:
    assert told(PROXY, "198.51.100.7") == "198.51.100.7"
    assert told("2001:db8:ffff::1", "198.51.100.7") == "198.51.100.7"


def test_behind_several_trusted_proxies_it_is_the_nearest_other_address() -> None:
    assert told(PROXY, "198.51.100.7, 10.0.0.3, 10.0.0.2") == "198.51.100.7"
    assert told(PROXY, "203.0.113.1, 198.51.100.7, 10.0.0.2") == "198.51.100.7"


def test_what_a_client_claims_in_front_does_not_count() -> None:
    assert told(PROXY, "10.0.0.9, 198.51.100.7") == "198.51.100.7"
    assert told(PROXY, "nonsense, 198.51.100.7") == "198.51.100.7"
    assert told(PROXY, "127.0.0.1, 127.0.0.1, 198.51.100.7, 10.0.0.2") == "198.51.100.7"


def test_headers_sent_twice_are_one_list_in_their_order() -> None:
    assert told(PROXY, "203.0.113.1", "198.51.100.7") == "198.51.100.7"
    assert told(PROXY, "203.0.113.1, 198.51.100.7", "10.0.0.2") == "198.51.100.7"


def test_where_all_are_trusted_it_is_the_farthest() -> None:
    assert told(PROXY, "10.0.0.9, 10.0.0.8") == "10.0.0.9"


@pytest.mark.parametrize(
    "hop",
    ["", "unknown", "_hidden", "198.51.100.7:", "198.51.100.7:http", "2001:db8::1:x", "[2001:db8::1",
     "[unknown]:80", "198.51.100", "198.51.0100.7", "198.51.100.0/24", "١٩٨.51.100.7", "'198.51.100.7'", "198.51.100.7 198.51.100.8", "999.1.1.1"],
)  # fmt: skip
def test_a_hop_that_cannot_be_read_leaves_no_address(hop: str) -> None:
    assert told(PROXY, f"192.0.2.1, {hop}") is None
    assert told("192.0.2.1", hop) == "192.0.2.1", "a header of an untrusted peer is not read"


def test_a_port_behind_an_address_does_not_count() -> None:
    assert told(PROXY, "192.0.2.1, 198.51.100.7:80") == "198.51.100.7"
    assert told(PROXY, "[2001:db8::1]:80, 10.0.0.2:443") == "2001:db8::1"
    assert told(PROXY, "[2001:db8::1]") == "2001:db8::1"


@pytest.mark.parametrize("remote", [None, "", "/run/gateway.sock", "nonsense"])
def test_a_connection_without_an_address_has_none(remote: str | None) -> None:
    assert told(remote) is None
    assert told(remote, "198.51.100.7") is None, "and it is not a trusted proxy"


def test_spaces_around_hops_do_not_matter() -> None:
    assert told(PROXY, "  198.51.100.7  ,\t10.0.0.2 ") == "198.51.100.7"


def test_an_ipv4_address_mapped_into_ipv6_is_that_ipv4_address() -> None:
    assert told("::ffff:192.0.2.1") == "192.0.2.1"
    assert told("::ffff:10.0.0.1", "::ffff:198.51.100.7") == "198.51.100.7"
    assert told("::FFFF:c000:201") == "192.0.2.1"


def test_the_zone_of_a_link_local_address_is_not_part_of_it() -> None:
    assert told("fe80::1%eth0") == "fe80::1"


def test_no_ipv6_address_is_within_an_ipv4_network() -> None:
    assert told("2001:db8::1", "198.51.100.7") == "2001:db8::1"
    assert told("::a00:1", "198.51.100.7") == "::a00:1", "10.0.0.1 without the mapping"


def test_addresses_are_values_of_their_kind() -> None:
    assert resolve_client_address("192.0.2.1", (), ()) == ip_address("192.0.2.1")


def test_an_address_with_host_bits_is_the_network_around_it() -> None:
    assert [str(network) for network in parse_networks(["10.1.2.3/8", "2001:db8::7/32"])] == [
        "10.0.0.0/8",
        "2001:db8::/32",
    ]
    with pytest.raises(ValueError, match="nonsense"):
        parse_networks(["nonsense"])


def test_a_long_list_of_hops_is_read_from_its_end() -> None:
    hops = ", ".join(["10.0.0.9"] * 2000)
    assert told(PROXY, f"198.51.100.7, {hops}") == "198.51.100.7"
