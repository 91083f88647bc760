"""Filters the headers of forwarded requests and responses.

All end-to-end headers pass, except those about the connection or the host, and those that the
gateway sets itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from multidict import CIMultiDict, CIMultiDictProxy


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


HOP_BY_HOP = _named(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade"
)
"""RFC 9110, section 7.6.1; also removed are the headers that ``Connection`` lists."""

OF_THE_HOST = _named(
    "access-control-allow-credentials alt-svc clear-site-data content-length nel public-key-pins "
    "report-to reporting-endpoints server set-cookie set-cookie2 strict-transport-security via "
    "x-lighttpd-send-file x-litespeed-location x-reproxy-url x-sendfile"
)
"""Headers that a client would store for the gateway's host, that a proxy in front of the gateway
would act on (also ``X-Accel-*``), or that the gateway sets.
"""

OF_THE_GATEWAY = _named(
    "content-length cookie expect forwarded host true-client-ip via x-api-key x-client-ip "
    "x-cluster-client-ip x-forwarded x-http-method x-http-method-override x-method-override "
    "x-original-host x-original-method x-original-uri x-original-url x-real-ip x-rewrite-url"
)
"""Headers that the gateway sets, that belong to the other interface, or that could make a service
that trusts the gateway see a different client, method or path than the checked one (also
``X-Forwarded-*``).
"""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that a field value must not contain (RFC 9110, section 5.5)."""

_OWN_PREFIXES = ("x-accel-", "x-forwarded-", "x-payout-gateway-", "cf-connecting-")


def filter_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Filters the headers of a signed request."""
    return _without(headers, OF_THE_GATEWAY)


def filter_legacy_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Filters the headers of a legacy request.

    ``Accept-Encoding`` is removed, because the gateway parses the response to a write, and
    ``Authorization``, because it belongs to the other interface.
    """
    passed = _without(headers, OF_THE_GATEWAY - {"x-api-key"})
    for name in ("Accept-Encoding", "Authorization"):
        passed.popall(name, None)
    return passed


def filter_response_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return _without(headers, OF_THE_HOST)


def is_writable(headers: CIMultiDictProxy[str]) -> bool:
    """Whether the filtered headers can be sent: aiohttp parses values that it refuses to write."""
    if not any(map(_CONTROL.search, headers.values())):  # the common case, without filtering
        return True
    return not any(map(_CONTROL.search, filter_response_headers(headers).values()))


def _without(headers: CIMultiDictProxy[str], unwanted: frozenset[str]) -> CIMultiDict[str]:
    unwanted |= HOP_BY_HOP | _nominated(headers)
    return CIMultiDict(
        (name, value)
        for name, value in _writable(headers)
        if (lower := name.lower()) not in unwanted and not lower.startswith(_OWN_PREFIXES)
    )


def _nominated(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """Lists the headers that ``Connection`` declares hop-by-hop."""
    lines: Iterable[str] = headers.getall("Connection", [])
    return frozenset(name.strip().lower() for line in lines for name in line.split(","))


def _writable(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Yields the headers whose values are valid UTF-8; others cannot be sent unchanged."""
    for name, value in headers.items():
        if not any("\ud800" <= letter <= "\udfff" for letter in value):
            yield name, value
