"""Two faces on one port: a request's own credentials say which it is for.

``Authorization`` with the current interface's scheme is a request of the current interface, signed
well or badly, and goes to the signed face; every other goes to the legacy one. A request with both
that and an ``X-API-Key`` is for the signed face: a signature is made for this one request, and an
API key may be what a client sends with everything.

A browser that asks first shows no credentials, but names the headers that it is going to send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.config.settings import CurrentWords
from gateway.observability import metrics, traces
from gateway.signed_api.credentials import has_scheme

Face = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class InterfaceRouter:
    """Called by the server with each request."""

    def __init__(self, words: CurrentWords, *, legacy: Face, signed: Face) -> None:
        self._words = words
        self._legacy = legacy
        self._signed = signed

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        face = self._signed if self._is_signed(request) else self._legacy
        metrics.in_flight.inc()
        try:
            with traces.start_request_span(request):
                return await face(request)
        finally:
            metrics.in_flight.dec()

    def _is_signed(self, request: web.BaseRequest) -> bool:
        if has_scheme(request.headers, self._words.scheme):
            return True
        return request.method == "OPTIONS" and self._will_be_signed(request)

    def _will_be_signed(self, request: web.BaseRequest) -> bool:
        asked = request.headers.getall("Access-Control-Request-Headers", [])
        names = {name.strip().lower() for line in asked for name in line.split(",")}
        return not names.isdisjoint(("authorization", self._words.timestamp_header.lower()))
