"""Which headers of a request go on to the service as it came, and which of its answer come back.

All end-to-end headers, both ways, but those that speak of the connection, of the host (which to the
client is the gateway), or that the gateway itself has to decide.
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
"""RFC 9110, section 7.6.1; besides, whatever ``Connection`` names."""

OF_THE_HOST = _named(
    "access-control-allow-credentials alt-svc clear-site-data content-length nel public-key-pins "
    "report-to reporting-endpoints server set-cookie set-cookie2 strict-transport-security via "
    "x-lighttpd-send-file x-litespeed-location x-reproxy-url x-sendfile"
)
"""Of responses: what a browser or library would keep of the gateway's address, what a proxy in front of
it would carry out (``X-Accel-*``, too), and what is set here.
"""

OF_THE_GATEWAY = _named(
    "content-length cookie expect forwarded host true-client-ip via x-api-key x-client-ip "
    "x-cluster-client-ip x-forwarded x-http-method x-http-method-override x-method-override "
    "x-original-host x-original-method x-original-uri x-original-url x-real-ip x-rewrite-url"
)
"""Of requests: what is set here, belongs to the other interface, or could make a service that trusts the
gateway see another client, method or path than the ones checked here (``X-Forwarded-*``, too).
"""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no field value may hold (RFC 9110, section 5.5)."""

_OWN_PREFIXES = ("x-accel-", "x-forwarded-", "x-payout-gateway-", "cf-connecting-")


def filter_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Every end-to-end header of a signed request but those of the gateway itself."""
    return _without(headers, OF_THE_GATEWAY)


def filter_legacy_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The answer to a write is read here, so it is not to come in an encoding that is not known here."""
    passed = _without(headers, OF_THE_GATEWAY - {"x-api-key"})
    for name in ("Accept-Encoding", "Authorization"):
        passed.popall(name, None)
    return passed


def filter_response_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return _without(headers, OF_THE_HOST)


def is_writable(headers: CIMultiDictProxy[str]) -> bool:
    """Whether a client can be sent what of a response is passed on: aiohttp reads what it does not write."""
    if not any(map(_CONTROL.search, headers.values())):  # as nearly always
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
    """The headers that are said to be for this connection alone."""
    lines: Iterable[str] = headers.getall("Connection", [])
    return frozenset(name.strip().lower() for line in lines for name in line.split(","))


def _writable(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Those that can be written as they came: a value that is not UTF-8 cannot."""
    for name, value in headers.items():
        if not any("\ud800" <= letter <= "\udfff" for letter in value):
            yield name, value
