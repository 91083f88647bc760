"""The server of the admin port: aiohttp's, with bounds and error responses of its own."""

from __future__ import annotations

import asyncio
from typing import Any, Self, cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.http import responses
from gateway.observability import logs
from gateway.server.connection import MALFORMED_HTTP
from mappings import errors

MAX_CONNECTIONS = 64
"""The sockets are among ``connections.OTHER_DESCRIPTORS``."""

IDLE_SECONDS = 75

SHUTDOWN_SECONDS = 10
"""Seconds that a shutdown waits for pages."""

NO_ACCESS_LOG: Any = None
"""Disables aiohttp's access log, which holds query strings; its type does not allow None."""

log = structlog.get_logger()


class AdminConnection(web.RequestHandler):
    """A connection whose errors do not repeat the request, and which may be closed for others."""

    def __init__(self, connections: dict[AdminConnection, None], server: web.Server) -> None:
        self.connections = connections
        """All that are open, of the idle ones that for longest first."""
        self.is_answering = False
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=NO_ACCESS_LOG,
            keepalive_timeout=IDLE_SECONDS,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connections[self] = None
        if len(self.connections) > MAX_CONNECTIONS:
            # Itself if a page is answered on every other one.
            replaced = next(each for each in self.connections if not each.is_answering)
            del self.connections[replaced]
            if replaced.transport is not None:
                replaced.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.pop(self, None)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it is what the client sent
    ) -> web.StreamResponse:
        if status >= 500:
            log.error("admin_page_failed", **logs.describe_exception(exc))
        # A second status line in the middle of a body would look like a part of the first response.
        if request.writer.output_size > 0:
            raise ConnectionError("a response has been started; no other can be sent")
        problem = MALFORMED_HTTP if status < 500 else errors.INTERNAL_ERROR
        legacy_response = responses.build_error_response(errors.build_legacy_error(problem))
        response = web.Response(
            status=legacy_response.status,
            body=legacy_response.body_bytes,
            content_type="application/json",
        )
        response.force_close()
        return response

    def log_exception(self, *_args: Any, **_kwargs: Any) -> None:
        """Logs nothing: the texts are what a client sent."""


class AdminServer:
    """Creates the admin port's connections; as a context manager it runs the application."""

    def __init__(self, application: web.Application) -> None:
        application.middlewares.append(_track_request)
        application.on_response_prepare.append(_close_after_chunked_body)
        self._runner = web.AppRunner(application, shutdown_timeout=SHUTDOWN_SECONDS)
        self._connections: dict[AdminConnection, None] = {}

    def __call__(self) -> asyncio.Protocol:
        """Creates the protocol of a new connection."""
        return AdminConnection(self._connections, cast("web.Server", self._runner.server))

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


@web.middleware
async def _track_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Exempts the connection from being closed for others while a page is answered."""
    connection = cast("AdminConnection", request.protocol)
    connection.is_answering = True
    try:
        return await handler(request)
    finally:
        connection.is_answering = False
        if connection in connection.connections:
            del connection.connections[connection]
            connection.connections[connection] = None


async def _close_after_chunked_body(request: web.BaseRequest, response: web.StreamResponse) -> None:
    # aiohttp's parser (3.14.5) prepends the last trailer of a chunked body to the headers of the
    # next request.
    if "Transfer-Encoding" in request.headers:
        response.force_close()
        response.headers["Connection"] = "close"
