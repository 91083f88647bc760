"""The server of the admin port: aiohttp's, with bounds and error responses of its own."""

from __future__ import annotations

import asyncio
from typing import Any, Self, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admission.load import ConnectionBounds, ConnectionTracker
from gateway.http import responses
from gateway.server.connection import MALFORMED_HTTP
from mappings import errors

ADMIN_BOUNDS = ConnectionBounds(
    max_connections=64, head_seconds=10, idle_seconds=75, pressed_seconds=2
)
"""The admin port's own bounds; its sockets are among ``file_descriptors.OTHER_DESCRIPTORS``."""

SHUTDOWN_SECONDS = 10
"""Seconds that a shutdown waits for pages."""

NO_ACCESS_LOG: Any = None
"""Disables aiohttp's access log, which holds query strings; its type does not allow None."""


class AdminConnection(web.RequestHandler):
    """A connection whose errors do not repeat the request, and which may be closed for others."""

    def __init__(self, tracker: ConnectionTracker[AdminConnection], server: web.Server) -> None:
        self.tracker = tracker
        self.loop = asyncio.get_running_loop()
        self.is_answering = False
        super().__init__(
            server,
            loop=self.loop,
            access_log=NO_ACCESS_LOG,
            keepalive_timeout=ADMIN_BOUNDS.idle_seconds,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.tracker.register_connection(self, None)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.tracker.connections.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Data that comes while a page is answered belongs to its body.
        if not self.is_answering:
            self.tracker.connections.mark_header_started(self, self.loop.time())

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def is_stalled(self, _now: float) -> bool:
        return False  # such a connection is idle, and closed after a while

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002 - its text is what the client sent
        message: str | None = None,  # noqa: ARG002 - the same
    ) -> web.StreamResponse:
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
        """Logs nothing: the texts are what a client sent, and pages log their own errors."""


class AdminServer:
    """Creates the admin port's connections; as a context manager it runs the application."""

    def __init__(self, application: web.Application) -> None:
        application.middlewares.append(_track_request)
        application.on_response_prepare.append(_close_after_chunked_body)
        self._runner = web.AppRunner(application, shutdown_timeout=SHUTDOWN_SECONDS)
        self._tracker: ConnectionTracker[AdminConnection] = ConnectionTracker(
            ADMIN_BOUNDS, asyncio.get_running_loop().time
        )
        self._sweep_task: asyncio.Task[None] | None = None

    def __call__(self) -> asyncio.Protocol:
        """Creates the protocol of a new connection."""
        return AdminConnection(self._tracker, cast("web.Server", self._runner.server))

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        self._sweep_task = asyncio.ensure_future(
            self._tracker.close_slow_connections_periodically()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        # The sweep ends last: it closes connections for which the cleanup would wait.
        await self._runner.cleanup()
        if self._sweep_task is not None:
            self._sweep_task.cancel()


@web.middleware
async def _track_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Exempts the connection from the timeout of a head while a page is answered."""
    connection = cast("AdminConnection", request.protocol)
    table, clock = connection.tracker.connections, connection.loop.time
    connection.is_answering = True
    table.start_request(connection, clock())
    try:
        return await handler(request)
    finally:
        connection.is_answering = False
        table.mark_connection_idle(connection, clock())


async def _close_after_chunked_body(request: web.BaseRequest, response: web.StreamResponse) -> None:
    # aiohttp's parser (3.14.5) prepends the last trailer of a chunked body to the headers of the
    # next request.
    if "Transfer-Encoding" in request.headers:
        response.force_close()
        response.headers["Connection"] = "close"
