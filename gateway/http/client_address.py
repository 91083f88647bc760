"""Where a request comes from: the address that counts behind trusted proxies."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOP = re.compile(r"([0-9.]+)(?::[0-9]+)?|\[([^\]]+)\](?::[0-9]+)?")
"""An address as some proxies write it: with the port behind it, that of IPv6 in brackets."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def resolve_client_address(
    remote: str | None, forwarded: Sequence[str], trusted: Sequence[Network]
) -> Address | None:
    """The client's address: the last of ``X-Forwarded-For`` that no trusted proxy has.

    A header from anybody else says nothing, and neither does one that cannot be read. None where
    there is no address at all (a Unix socket).
    """
    address = _read(remote)
    hops = [hop for line in forwarded for hop in line.split(",")]
    while address is not None and hops and _within(address, trusted):
        nearer = _read(_without_port(hops.pop().strip()))
        if nearer is None:
            return None
        address = nearer
    return address


def counted_as(address: Address | None) -> str:
    """The name under which requests of an address are counted: one client has a whole /64 of IPv6."""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _without_port(hop: str) -> str:
    found = _HOP.fullmatch(hop)
    return found[1] or found[2] if found else hop


def _within(address: Address, trusted: Sequence[Network]) -> bool:
    return any(address in network for network in trusted if network.version == address.version)


@lru_cache(maxsize=1024)
def _read(text: str | None) -> Address | None:
    try:
        address = ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_proxy(remote: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> bool:
    """Whether the peer of a connection is a proxy: one that is trusted, or that says so itself.

    What becomes of such a connection after a response says nothing of the client behind it.
    """
    address = _read(remote)
    return bool(forwarded) or (address is not None and _within(address, trusted))
