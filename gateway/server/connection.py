"""An HTTP server on aiohttp's low-level API, with the gateway's own error responses and logs.

aiohttp's error pages are plain text, and its 400 page and log repeat a malformed header, even an
API key. Here every response has the legacy format, and nothing that a client sent is logged.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self, cast

import structlog
from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMethod, BadStatusLine
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.admission.load import ConnectionBounds, ConnectionTracker
from gateway.http import responses
from gateway.http.delivery import find_seconds_since_last_bytes, is_acknowledged
from gateway.http.request_ids import generate_hex_id
from gateway.http.request_reader import (
    ARRIVED_AT,
    BODY_TIMED_OUT,
    CONNECTION,
    IS_LAST_RESPONSE,
    ON_DISCONNECT,
    ON_RESET,
    UNDERLYING_TRANSPORT,
    is_connection_close_required,
)
from gateway.http.tls import Certificate, start_eagerly
from gateway.observability import logs, metrics
from mappings import errors
from mappings.failures import Problem

BODY_DRAIN_SECONDS = 5
"""Seconds to drain the rest of a body after an early response, so that the client reads that."""

TLS_SHUTDOWN_SECONDS = 5
"""Seconds to wait for the client's TLS close_notify."""

WRITE_STALL_SECONDS = 30
"""A connection is closed if its client reads no byte of a response for this time."""

RESET_RELEVANT_SECONDS = 60
"""A later reset does not concern the response: load balancers reset idle connections."""

CLOSE_SECONDS = 5
"""Seconds that a connection remains half-closed after its last response, to notice a reset."""

RETIRE_IDLE_SECONDS = 5
"""Seconds that a replaced worker waits for the next requests on its connections."""

SHUTDOWN_IDLE_SECONDS = 1
"""The same for a worker that is not replaced."""

MALFORMED_HTTP = Problem("invalid_field", "The request is not well-formed HTTP.")

NO_ACCESS_LOG: Any = None
"""Disables aiohttp's access log, because the handler writes one; its type does not allow None."""

log = structlog.get_logger()


_SUPPORTED_VERSIONS = (HttpVersion10, HttpVersion11)
_WELL_FORMED_REQUEST_LINE = re.compile(r"b'[A-Z]{1,20} /\S* HTTP/1\.[01]")

MIN_UNREAD_SECONDS = 0.02
"""Bytes that were in the kernel for less were read at once: it counts time in ticks of 4 ms."""


def _has_data_dropped_by_aiohttp(data: bytes, message: RawRequestMessage) -> bool:
    """Whether aiohttp drops the data after a request, as it does after ``Upgrade: h2c``.

    The connection must be closed after the response: a client that pipelined a second request would
    wait for its response forever.
    """
    if not message.upgrade or message.headers.get("Upgrade", "").lower() == "websocket":
        return False
    body_and_rest = data.partition(b"\r\n\r\n")[2]
    return len(body_and_rest) > int(message.headers.get("Content-Length", 0))


def _is_plain_message(message: RawRequestMessage | _ErrInfo) -> bool:
    """Whether a request has nothing that is refused here, as nearly every one."""
    return (
        type(message) is RawRequestMessage
        and message.version == HttpVersion11
        and not message.upgrade
        and "Transfer-Encoding" not in message.headers
    )


def _get_peer_address(transport: asyncio.BaseTransport) -> str | None:
    peer = transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else None


class Connection(RequestHandler):
    """A client connection: tracks its phase, refuses bad HTTP, reports disconnects and resets."""

    __slots__ = (
        "_ignores_input",
        "_last_response_at",
        "_newest_body",
        "_on_reset",
        "_peer_closed",
        "_read_at",
        "_response_count",
        "_stalled_since",
        "_table",
        "_tcp_transport",
        "_tracker",
        "_unread_bytes",
    )

    def __init__(self, tracker: ConnectionTracker[Connection], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tracker = tracker
        self._table = tracker.connections
        self._tcp_transport: Any = None
        self._response_count = 0
        self._last_response_at = self._read_at = 0.0
        self._peer_closed: asyncio.Future[None] | None = None
        self._ignores_input = False
        self._on_reset: Callable[[], None] | None = None
        self._unread_bytes = 0
        self._stalled_since = 0.0
        self._newest_body: Any = None
        """The body of the last request received; only this one can be incomplete."""

    def track_tls_handshake(self, tcp_transport: asyncio.Transport) -> None:
        """Tracks a new connection that starts with a TLS handshake."""
        self._tcp_transport = tcp_transport
        self._tracker.register_connection(self, _get_peer_address(tcp_transport), shakes_hands=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._tcp_transport is None:
            self._tcp_transport = transport
            self._tracker.register_connection(self, _get_peer_address(transport))
        else:
            self._table.mark_handshake_complete(self, self._loop.time())

    @property
    def underlying_transport(self) -> asyncio.Transport | None:
        return None if self._tcp_transport is self.transport else self._tcp_transport

    def abort(self) -> None:
        """Closes immediately: no response is pending."""
        if self._tcp_transport is not None:
            self._tcp_transport.abort()

    def attribute_to_tenant(self, tenant: Hashable) -> None:
        self._table.assign_tenant(self, tenant, self._loop.time())

    def mark_request_running(self, tenant: Hashable = None) -> None:
        self._table.mark_request_running(self, self._loop.time(), tenant)

    def mark_response_in_progress(self) -> None:
        self._table.mark_response_in_progress(self, self._loop.time())

    def pause_writing(self) -> None:
        """Ends the request's work: its response fills the buffer, so it is no longer running."""
        super().pause_writing()
        self._table.mark_response_in_progress(self, self._loop.time())

    def resume_writing(self) -> None:
        # The client has read some of the response, so its time to read starts again.
        super().resume_writing()
        self._table.mark_response_in_progress(self, self._loop.time())

    def is_stalled(self, now: float) -> bool:
        """Whether the client has read no response data for ``WRITE_STALL_SECONDS``."""
        buffered_bytes = self.transport.get_write_buffer_size() if self.transport is not None else 0
        # Only a smaller buffer is progress: a larger one shows that the handler wrote more.
        if not self._unread_bytes or buffered_bytes < self._unread_bytes:
            self._stalled_since = now
        self._unread_bytes = buffered_bytes
        return bool(buffered_bytes) and now - self._stalled_since >= WRITE_STALL_SECONDS

    def find_arrival_time(self) -> float:
        """Returns when the request that was read last arrived, by the event loop's clock.

        It may have waited in the kernel while the process was stopped or busy. A request that was
        read at once, and waited for the response to one before it, counts from now.
        """
        waited_seconds = find_seconds_since_last_bytes(self._tcp_transport)
        unread_seconds = waited_seconds - (time.monotonic() - self._read_at)
        return self._loop.time() - (waited_seconds if unread_seconds > MIN_UNREAD_SECONDS else 0.0)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        # Not by the event loop's clock, which may be as old as the last callback took.
        self._read_at = time.monotonic()
        super().data_received(data)
        # If no request is unanswered, the data belongs to a head, which has its own timeout.
        if self._request_count > self._response_count:
            self._table.start_request(self, self._loop.time())
        else:
            self._table.mark_header_started(self, self._loop.time())
        messages = self._messages
        if not messages:
            return
        message, body = messages[-1]
        if len(messages) == 1 and _is_plain_message(message):
            self._newest_body = body
            return
        self._refuse_unsupported_version_or_coding()
        # One packet may contain several pipelined requests; only the newest can be incomplete.
        newest_message, body = self._messages[-1]
        if not isinstance(newest_message, _ErrInfo):
            self._newest_body = body
            self._ignores_input = _has_data_dropped_by_aiohttp(data, newest_message)
        elif self._fail_incomplete_body():
            # aiohttp would answer twice: the request with this body, and then the error.
            self._messages.pop()
            self._request_count -= 1
            self._ignores_input = True

    def _refuse_unsupported_version_or_coding(self) -> None:
        """Refuses HTTP/0.9 (responses without status), HTTP/2.0 (binary), and bodies with codings.

        aiohttp's parser accepts transfer codings before ``chunked`` and does not decode them.
        """
        for position, (message, _body) in enumerate(self._messages):
            if isinstance(message, _ErrInfo):
                continue
            codings = ",".join(message.headers.getall("Transfer-Encoding", ["chunked"]))
            if message.version not in _SUPPORTED_VERSIONS or codings.strip().lower() != "chunked":
                error = BadStatusLine()
                # aiohttp's own entry for a malformed request, which it answers with `handle_error`.
                self._messages[position] = (_ErrInfo(400, error, ""), EMPTY_PAYLOAD)

    def _fail_incomplete_body(self) -> bool:
        """Fails the pending read of an incomplete body; returns False if the body is complete."""
        if self._newest_body is None or self._newest_body.is_eof():
            return False
        self._newest_body.set_exception(web.RequestPayloadError("malformed"))
        # Wakes the handler that waits for more of the body.
        self._newest_body.feed_eof()
        return True

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        outcome = await super().finish_response(request, resp, start_time)
        self._on_reset = request.get(ON_RESET)
        self._response_count += 1
        if self._request_count == self._response_count:
            self._table.mark_connection_idle(self, self._loop.time())
        if request.get(BODY_TIMED_OUT):
            # The client is too slow; draining the rest would take another BODY_DRAIN_SECONDS.
            self._lingering_time = 0
        # The last request that was understood is answered; the rest of the input is unreadable.
        if self._ignores_input and self._response_count == self._request_count:
            self.close()
        # Half-closed only after writes, where a reset makes an identical request a retry.
        if self._on_reset is not None:
            self._last_response_at = self._loop.time()
            if not resp.keep_alive:
                await self._half_close_and_wait_for_peer()
        return outcome

    async def _half_close_and_wait_for_peer(self) -> None:
        """Waits for the client to close: the kernel does not report a reset on a closed socket."""
        if self.transport is None or not self.transport.can_write_eof():
            return
        self.transport.write_eof()
        self._peer_closed = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._peer_closed

    def connection_lost(self, exc: BaseException | None) -> None:
        # Read before super(), which forgets the request and the transport.
        request = self._current_request
        if isinstance(exc, ConnectionError):
            elapsed = self._loop.time() - self._last_response_at
            if self._on_reset is not None and elapsed <= RESET_RELEVANT_SECONDS:
                self._on_reset()
            # A reset also discards unacknowledged bytes, which would look as if all had arrived.
            if request is not None and (on_reset := request.get(ON_RESET)):
                on_reset()
        if self._peer_closed is not None and not self._peer_closed.done():
            self._peer_closed.set_result(None)
        underlying_transport = request.get(UNDERLYING_TRANSPORT) if request is not None else None
        is_received = is_acknowledged(self.transport, underlying_transport)
        self._table.close(self)
        super().connection_lost(exc)
        if request is not None and (on_disconnect := request.get(ON_DISCONNECT)):
            on_disconnect(is_received)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what the client sent
    ) -> web.StreamResponse:
        # A second status line in the middle of a body would look like a part of the first response.
        if request.writer.output_size > 0:
            raise ConnectionError("a response has been started; no other can be sent")
        metrics.invalid_http.inc()
        request_id = generate_hex_id()
        problem = MALFORMED_HTTP if status < 500 else errors.INTERNAL_ERROR
        if isinstance(exc, BadHttpMethod) and _WELL_FORMED_REQUEST_LINE.search(str(exc)):
            problem = errors.NOT_FOUND  # a method that no path has
        response = responses.build_error_response(
            errors.build_legacy_error(problem), closes_connection=True
        )
        log.warning(
            "invalid_http_request",
            request_id=request_id,
            **{"http.response.status_code": response.status, "error.type": type(exc).__name__},
        )
        # The manager may be the admin server, which has no extra headers.
        extra_headers = getattr(self._manager, "extra_headers", responses.NO_HEADERS)
        return responses.build_web_response(response, request_id, deprecation_headers=extra_headers)

    def log_exception(self, *_args: Any, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, web.RequestPayloadError):
            return  # this is the rest of a body after the response; there is nothing left to report
        log.error(
            "connection_failed",
            **logs.describe_exception(error if isinstance(error, BaseException) else None),
        )


class TlsHandshake(asyncio.Protocol):
    """The TLS handshake of a connection.

    The event loop's own TLS servers are not used: they do not expose unfinished handshakes, which
    must count as connections and be closed like them.
    """

    def __init__(self, connection: Connection, server: HttpServer) -> None:
        self._connection = connection
        self._server = server
        self._early_data: list[bytes] = []
        self._handshake_task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tcp_transport = cast("asyncio.Transport", transport)
        self._connection.track_tls_handshake(tcp_transport)
        if tcp_transport.is_closing():  # the tracker has closed it for others
            return
        # Started eagerly, so that TLS reads from the first byte: uvloop would otherwise give this
        # protocol the data that arrives before.
        self._handshake_task = asyncio.ensure_future(
            self._finish_handshake(tcp_transport, start_eagerly(self._start_tls(tcp_transport)))
        )
        self._server.handshakes.add(self._handshake_task)
        self._handshake_task.add_done_callback(self._server.handshakes.discard)

    def data_received(self, data: bytes) -> None:
        """Buffers a request that arrives before this process notices the end of the handshake."""
        self._early_data.append(data)

    async def _finish_handshake(
        self, tcp_transport: asyncio.Transport, handshake: Awaitable[asyncio.Transport | None]
    ) -> None:
        tls_transport = None
        try:
            tls_transport = await handshake
        except OSError:
            pass  # no TLS, no common version or cipher, or a timeout: no response is possible
        finally:
            if tls_transport is None:
                tcp_transport.abort()
                self._server.tracker.connections.close(self._connection)
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


class HttpServer(web.Server):
    """Creates a Connection for each client; as a context manager it enforces their timeouts."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bounds: ConnectionBounds,
        certificate: Certificate | None = None,
        extra_headers: Mapping[str, str] = responses.NO_HEADERS,
    ) -> None:
        async def handle_request(request: web.BaseRequest) -> web.StreamResponse:
            is_last_response: Callable[[], bool] = partial(self._is_last_response, request)
            request[IS_LAST_RESPONSE] = is_last_response
            connection: Connection = request.protocol  # type: ignore[assignment] # as it creates them
            request[CONNECTION] = connection
            if request.method not in ("GET", "HEAD"):
                request[ARRIVED_AT] = connection.find_arrival_time()
            if underlying_transport := connection.underlying_transport:
                request[UNDERLYING_TRANSPORT] = underlying_transport
            metrics.traffic.in_flight_count += 1
            try:
                response = await handler(request)
            finally:
                metrics.traffic.in_flight_count -= 1
            # Tells the client with `Connection: close`, so that it does not send another request.
            if not response.prepared and self._is_last_response(request):
                response.force_close()
            return response

        super().__init__(handle_request)
        self.extra_headers = extra_headers
        """Headers of responses that are created here, to requests that are not valid HTTP."""
        self._is_retiring = False
        self._idle_seconds = bounds.idle_seconds
        self.handshake_seconds = bounds.head_seconds
        self.certificate = certificate
        self.handshakes: set[asyncio.Task[None]] = set()
        self.tracker: ConnectionTracker[Connection] = ConnectionTracker(bounds, self._loop.time)
        self._background_tasks: list[asyncio.Task[None]] = []

    def _is_last_response(self, request: web.BaseRequest) -> bool:
        headers = request.headers
        return self._is_retiring or (
            # Nearly no request of a client has either header, except those with a body.
            ("Transfer-Encoding" in headers or "Content-Length" in headers)
            and is_connection_close_required(request)
        )

    async def __aenter__(self) -> Self:
        self._background_tasks.append(
            asyncio.ensure_future(self.tracker.close_slow_connections_periodically())
        )
        if self.certificate:
            self._background_tasks.append(
                asyncio.ensure_future(self.certificate.reload_whenever_files_change())
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        # A client that never finishes its handshake must not delay the shutdown.
        tasks = [*self._background_tasks, *self.handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drain_connections(self, seconds: float) -> None:
        """Makes each response its connection's last; returns when no connection is left.

        Returns after ``seconds`` in any case: connections without a request until then can be
        closed. Closing them immediately would lose requests that clients are just sending.
        """
        self._is_retiring = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections:  # noqa: ASYNC110 - aiohttp has no event for the last one's end
                    await asyncio.sleep(0.05)

    def __call__(self) -> RequestHandler:
        connection = self._create_connection()
        if self.certificate is None:
            return connection
        # aiohttp's type for it is too narrow: the event loop needs only a protocol.
        return cast("RequestHandler", TlsHandshake(connection, self))

    def _create_connection(self) -> Connection:
        return Connection(
            self.tracker,
            self,
            loop=self._loop,
            access_log=NO_ACCESS_LOG,
            keepalive_timeout=self._idle_seconds,
            lingering_time=BODY_DRAIN_SECONDS,
            auto_decompress=False,  # a body that is forwarded must be unchanged
        )
