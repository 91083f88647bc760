"""Routes a request to one of the two interfaces by its credentials.

A request whose ``Authorization`` has the current interface's scheme is handled as a signed
request, whether or not its signature is valid. Every other request is a legacy one. If a request
has an ``X-API-Key`` too, the signature decides: it was made for this request, while a client may
send its API key with every request. A CORS preflight has no credentials, but lists the headers
that will follow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.config.settings import CurrentWords
from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.observability import traces
from gateway.signed_api.credentials import has_authorization_scheme

RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class InterfaceRouter:
    """Calls the handler of the interface that a request uses."""

    def __init__(
        self, words: CurrentWords, *, legacy_handler: RequestHandler, signed_handler: RequestHandler
    ) -> None:
        self._words = words
        self._legacy_handler = legacy_handler
        self._signed_handler = signed_handler

    def __call__(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        # The legacy handler has had a request with these header fields.
        if request.fields.client is not None and request.method != "OPTIONS":
            is_signed = False
        else:
            is_signed = has_authorization_scheme(request.headers, self._words.scheme) or (
                request.method == "OPTIONS" and self._is_signed_request_preflight(request)
            )
        handler = self._signed_handler if is_signed else self._legacy_handler
        return handler(request) if traces.active_tracer is None else _trace(handler, request)

    def _is_signed_request_preflight(self, request: HttpRequest) -> bool:
        header_lines = request.headers.getall("Access-Control-Request-Headers", [])
        header_names = {name.strip().lower() for line in header_lines for name in line.split(",")}
        # A legacy client sends neither header.
        return not header_names.isdisjoint(("authorization", self._words.timestamp_header.lower()))


async def _trace(handler: RequestHandler, request: HttpRequest) -> HttpResponse:
    with traces.start_request_span(request.method, request.headers.get("traceparent", "")):
        return await handler(request)
