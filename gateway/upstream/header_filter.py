"""Filters the headers of forwarded requests and responses.

All end-to-end headers pass, except those about the connection or the host, and those that the
gateway sets itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from multidict import CIMultiDict, CIMultiDictProxy


def _split_header_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


HOP_BY_HOP = _split_header_names(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade"
)
"""RFC 9110, section 7.6.1; also removed are the headers that ``Connection`` lists."""

REMOVED_RESPONSE_HEADERS = _split_header_names(
    "access-control-allow-credentials alt-svc clear-site-data content-length nel public-key-pins "
    "report-to reporting-endpoints server set-cookie set-cookie2 strict-transport-security via "
    "x-lighttpd-send-file x-lighttpd-send-tempfile x-litespeed-location x-reproxy-url x-sendfile"
)
"""Headers that a client would store for the gateway's host, that a proxy in front of the gateway
would act on (also ``X-Accel-*``), or that the gateway sets.
"""

REMOVED_REQUEST_HEADERS = _split_header_names(
    "content-length cookie expect forwarded host true-client-ip via x-api-key x-client-ip "
    "x-cluster-client-ip x-forwarded x-http-method x-http-method-override x-method-override "
    "x-original-host x-original-method x-original-uri x-original-url x-real-ip x-rewrite-url"
)
"""Headers that the gateway sets, that belong to the other interface, or that could make a service
that trusts the gateway see a different client, method or path than the checked one (also
``X-Forwarded-*``).
"""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that a field value must not contain (RFC 9110, section 5.5)."""

_REMOVED_PREFIXES = ("x-accel-", "x-forwarded-", "x-payout-gateway-", "cf-connecting-")


def filter_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Filters the headers of a signed request."""
    return _remove_headers(headers, REMOVED_REQUEST_HEADERS)


def filter_legacy_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Filters the headers of a legacy request.

    ``Accept-Encoding`` is removed, because the gateway parses the response to a write, and
    ``Authorization``, because it belongs to the other interface.
    """
    filtered_headers = _remove_headers(headers, REMOVED_REQUEST_HEADERS - {"x-api-key"})
    for name in ("Accept-Encoding", "Authorization"):
        filtered_headers.popall(name, None)
    return filtered_headers


def filter_response_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return _remove_headers(headers, REMOVED_RESPONSE_HEADERS)


def has_writable_response_headers(headers: CIMultiDictProxy[str]) -> bool:
    """Whether no filtered header has a control character, which parsers read in different ways."""
    return not any(map(_CONTROL_CHARACTER.search, filter_response_headers(headers).values()))


def _remove_headers(
    headers: CIMultiDictProxy[str], removed_names: frozenset[str]
) -> CIMultiDict[str]:
    # ``Connection`` may name any header, which must then not be forwarded (RFC 9110, section
    # 7.6.1).
    removed_names |= HOP_BY_HOP | _list_connection_headers(headers)
    return CIMultiDict(
        (name, value)
        for name, value in _iter_encodable_headers(headers)
        if (lower := name.lower()) not in removed_names and not lower.startswith(_REMOVED_PREFIXES)
    )


def _list_connection_headers(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """Lists the headers that ``Connection`` declares hop-by-hop."""
    lines: Iterable[str] = headers.getall("Connection", [])
    return frozenset(name.strip().lower() for line in lines for name in line.split(","))


def _iter_encodable_headers(headers: CIMultiDictProxy[str]) -> Iterator[tuple[str, str]]:
    """Yields the headers whose values are valid UTF-8; others cannot be sent unchanged."""
    for name, value in headers.items():
        if not any("\ud800" <= letter <= "\udfff" for letter in value):
            yield name, value
