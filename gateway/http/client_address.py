"""Determines client addresses, also behind trusted proxies."""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOP_PATTERN = re.compile(r"([0-9.]+)(?::[0-9]+)?|\[([^\]]+)\](?::[0-9]+)?")
"""An address with an optional port, as some proxies write it; IPv6 in brackets."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parses networks; IPv4-mapped IPv6 becomes IPv4, as client addresses do."""
    return tuple(map(_parse_network, texts))


def _parse_network(text: str) -> Network:
    network = ipaddress.ip_network(text, strict=False)
    ipv4_address = network.network_address.ipv4_mapped if network.version == 6 else None
    if ipv4_address and network.prefixlen >= 96:
        return ipaddress.ip_network(f"{ipv4_address}/{network.prefixlen - 96}")
    return network


def is_address_allowed(networks: Sequence[Network], address: Address | None) -> bool:
    """Whether an address is in one of the networks; an empty list admits any address."""
    return not networks or (address is not None and _is_in_networks(address, networks))


def resolve_client_address(
    remote: str | None, forwarded_for: Sequence[str], trusted_proxies: Sequence[Network]
) -> Address | None:
    """Returns the last address in ``X-Forwarded-For`` that is not a trusted proxy.

    The header is ignored unless the peer is a trusted proxy. None if there is no address (a Unix
    socket) or the header cannot be parsed.
    """
    address = parse_address(remote)
    hops = [hop for line in forwarded_for for hop in line.split(",")]
    # Read from right to left: a client can forge all entries except those that trusted proxies
    # appended.
    while address is not None and hops and _is_in_networks(address, trusted_proxies):
        hop_address = parse_address(_strip_port(hops.pop().strip()))
        if hop_address is None:
            return None
        address = hop_address
    return address


def format_address_rate_limit_name(address: Address | None) -> str:
    """Formats the name under which an address is rate limited.

    For IPv6 that is its /64 network, because one client usually has all of it.
    """
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _strip_port(hop: str) -> str:
    match = _HOP_PATTERN.fullmatch(hop)
    return match[1] or match[2] if match else hop


def _is_in_networks(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


@lru_cache(maxsize=1024)
def parse_address(text: str | None) -> Address | None:
    try:
        # The zone of a link-local address (RFC 4007) is dropped.
        address = ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None
    ipv4_address = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    # A dual-stack socket reports an IPv4 client as ::ffff:192.0.2.1; address lists name the IPv4
    # address.
    return ipv4_address or address
