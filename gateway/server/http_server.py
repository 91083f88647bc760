"""The server of the client port: creates connections, with TLS if configured, and stops them."""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Self, cast

from gateway.admission.load import ConnectionBounds, ConnectionTracker
from gateway.http import responses
from gateway.http.tls import Certificate, start_eagerly
from gateway.observability import metrics
from gateway.server.connection import Connection, RequestHandler

TLS_SHUTDOWN_SECONDS = 5
"""Seconds to wait for the client's TLS close_notify."""

SHUTDOWN_IDLE_SECONDS = 1
"""Seconds that a shutdown waits for the next requests on open connections."""


class HttpServer:
    """Creates a connection for each client; as a context manager it enforces their timeouts.

    ``extra_headers`` are sent with responses to requests that are not valid HTTP. On exit requests
    that run have ``shutdown_seconds`` to end.
    """

    def __init__(
        self,
        handler: RequestHandler,
        bounds: ConnectionBounds,
        certificate: Certificate | None = None,
        extra_headers: Mapping[str, str] = responses.NO_HEADERS,
        *,
        shutdown_seconds: float = 60,
    ) -> None:
        self.handler = handler
        self.extra_headers = extra_headers
        self.is_retiring = False
        self.handshake_seconds = bounds.head_seconds
        self.certificate = certificate
        self.tracker = ConnectionTracker(bounds, asyncio.get_running_loop().time)
        self.connections: set[Connection] = set()
        self.request_tasks: set[asyncio.Task[None]] = set()
        self.handshakes: set[asyncio.Task[None]] = set()
        self._shutdown_seconds = shutdown_seconds
        self._background_tasks: list[asyncio.Task[None]] = []

    def __call__(self) -> asyncio.Protocol:
        """Creates the protocol of a new connection."""
        connection = Connection(self)
        return connection if self.certificate is None else TlsHandshake(connection, self)

    async def __aenter__(self) -> Self:
        metrics.traffic.running_requests[self] = self.request_tasks
        self._background_tasks.append(
            asyncio.ensure_future(self.tracker.close_slow_connections_periodically())
        )
        if self.certificate:
            self._background_tasks.append(
                asyncio.ensure_future(self.certificate.reload_whenever_files_change())
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)  # requests that have just arrived start before the rest is closed
        for connection in list(self.connections):
            connection.close_after_request()
        # Also those whose clients have disconnected: they may be paying.
        if self.request_tasks:
            await asyncio.wait(self.request_tasks, timeout=self._shutdown_seconds)
        # A client that never finishes its handshake must not delay the shutdown.
        tasks = [*self.request_tasks, *self._background_tasks, *self.handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.abort()
        del metrics.traffic.running_requests[self]

    async def drain_connections(self, seconds: float = SHUTDOWN_IDLE_SECONDS) -> None:
        """Makes each response its connection's last; returns when no connection is left.

        Returns after ``seconds`` in any case: connections without a request until then can be
        closed. Closing them immediately would lose requests that clients are just sending.
        """
        self.is_retiring = True
        for connection in self.connections:
            connection.is_retiring = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.connections and loop.time() < deadline:  # noqa: ASYNC110 - only at the end
            await asyncio.sleep(0.05)


class TlsHandshake(asyncio.Protocol):
    """The TLS handshake of a connection.

    The event loop's own TLS servers are not used: they do not expose unfinished handshakes, which
    must count as connections and be closed like them.
    """

    def __init__(self, connection: Connection, server: HttpServer) -> None:
        self._connection = connection
        self._server = server
        self._early_data: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tcp_transport = cast("asyncio.Transport", transport)
        self._connection.track_tls_handshake(tcp_transport)
        if tcp_transport.is_closing():  # the tracker has closed it for others
            return
        # Started eagerly, so that TLS reads from the first byte: uvloop would otherwise give this
        # protocol the data that arrives before.
        task = asyncio.ensure_future(
            self._finish_handshake(tcp_transport, start_eagerly(self._start_tls(tcp_transport)))
        )
        self._server.handshakes.add(task)
        task.add_done_callback(self._server.handshakes.discard)

    def data_received(self, data: bytes) -> None:
        """Buffers a request that arrives before this process notices the end of the handshake."""
        self._early_data.append(data)

    async def _finish_handshake(
        self, tcp_transport: asyncio.Transport, handshake: Awaitable[asyncio.Transport | None]
    ) -> None:
        tls_transport = None
        # No TLS, no common version or cipher, or a timeout: no response is possible.
        try:
            with suppress(OSError):
                tls_transport = await handshake
        finally:
            if tls_transport is None:
                tcp_transport.abort()
                self._server.tracker.connections.discard(self._connection)
        if tls_transport is not None:
            # The order matters: the connection needs its transport before the data that came early.
            tls_transport.set_protocol(self._connection)
            self._connection.connection_made(tls_transport)
            for early_part in self._early_data:
                self._connection.data_received(early_part)

    async def _start_tls(self, tcp_transport: asyncio.Transport) -> asyncio.Transport | None:
        certificate = self._server.certificate
        if certificate is None:
            return None
        tls_transport = await asyncio.get_running_loop().start_tls(
            tcp_transport,
            self,
            certificate.context,
            server_side=True,
            # Longer than the tracker's own limit, which ends a handshake first.
            ssl_handshake_timeout=self._server.handshake_seconds + TLS_SHUTDOWN_SECONDS,
            ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
        )
        return None if tls_transport is None or tls_transport.is_closing() else tls_transport
