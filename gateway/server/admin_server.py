"""The server of the admin port: the client port's connections, with bounds of their own."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.admission.load import ConnectionBounds, ConnectionTracker
from gateway.http.request_reader import is_connection_close_required
from gateway.server.connection import NO_ACCESS_LOG, Connection

ADMIN_BOUNDS = ConnectionBounds(
    max_connections=64, head_seconds=10, idle_seconds=75, pressed_seconds=2
)
"""The admin port's own bounds; its sockets are among ``file_descriptors.OTHER_DESCRIPTORS``."""


class _AdminServer(web.Server):
    """Answers malformed requests like the client port, with its own connection bounds."""

    def __init__(self, base_server: web.Server) -> None:
        # The request factory of the application, which its routes and middlewares need.
        super().__init__(self._handle_request, request_factory=base_server.request_factory)
        self._handler = base_server.request_handler
        self.tracker: ConnectionTracker[Connection] = ConnectionTracker(
            ADMIN_BOUNDS, self._loop.time
        )

    async def _handle_request(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handler(request)
        if is_connection_close_required(request) and not response.prepared:
            response.force_close()
        return response

    def __call__(self) -> RequestHandler:
        idle_seconds = ADMIN_BOUNDS.idle_seconds
        return Connection(
            self.tracker,
            self,
            loop=self._loop,
            access_log=NO_ACCESS_LOG,
            keepalive_timeout=idle_seconds,
        )


class AdminRunner(web.AppRunner):
    """Runs the admin application on connections whose errors do not repeat the request."""

    _sweep_task: asyncio.Task[None] | None = None

    async def _make_server(self) -> web.Server:
        server = _AdminServer(await super()._make_server())
        self._sweep_task = asyncio.ensure_future(
            server.tracker.close_slow_connections_periodically()
        )
        return server

    async def cleanup(self) -> None:
        # The sweep ends last: it closes stalled connections, for which the cleanup would wait.
        await super().cleanup()
        if self._sweep_task is not None:
            self._sweep_task.cancel()
