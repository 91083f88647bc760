"""Which headers of a request go on to the service as it came, and which of its answer come back.

Requests: those that are named here, and no others. The service trusts what comes from the gateway,
so a header that could make it see another address, method or path than the ones checked here
(``X-Forwarded-For``, ``X-HTTP-Method-Override``, ``X-Original-URL``) must not be among them, and
neither the credentials of the other face. Answers: all but those that speak of the connection or of
the host, which to the client is the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from multidict import CIMultiDict, CIMultiDictProxy

if TYPE_CHECKING:
    from gateway.settings import CurrentWords


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


OF_REQUESTS = _named(
    "accept accept-charset accept-encoding accept-language authorization cache-control content- "
    "digest content-disposition content-encoding content-language content-md5 content-type "
    "digest idempotency-key if-match if-modified-since if-none-match if-range if-unmodified- "
    "since origin pragma prefer range traceparent tracestate user-agent x-correlation-id "
    "x-request-id"
)

HOP_BY_HOP = _named(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade"
)
"""RFC 9110, section 7.6.1; besides, whatever ``Connection`` names."""

OF_THE_HOST = _named(
    "alt-svc clear-site-data content-length nel public-key-pins report-to reporting-endpoints "
    "server set-cookie set-cookie2 strict-transport-security via"
)
"""What a browser or library would keep of the gateway's address, and what is set here anew."""


def of_request(headers: CIMultiDictProxy[str], words: CurrentWords) -> CIMultiDict[str]:
    wanted = (OF_REQUESTS | {words.timestamp_header.lower()}) - _nominated(headers)
    return CIMultiDict(
        (name, value) for name, value in _writable(headers) if name.lower() in wanted
    )


OF_LEGACY_REQUESTS = (OF_REQUESTS | {"x-api-key"}) - {"accept-encoding", "authorization"}
"""The answer to a write is read here, so it is not to come in an encoding that is not known here."""


def of_legacy_request(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    wanted = OF_LEGACY_REQUESTS - _nominated(headers)
    return CIMultiDict(
        (name, value) for name, value in _writable(headers) if name.lower() in wanted
    )


def of_answer(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    unwanted = HOP_BY_HOP | OF_THE_HOST | _nominated(headers)
    return CIMultiDict(
        (name, value) for name, value in _writable(headers) if name.lower() not in unwanted
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
