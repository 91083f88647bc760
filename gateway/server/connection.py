"""A client connection: parses requests, answers them in order, and enforces what HTTP leaves open.

Everything that a client sent and that is not well-formed is answered in the legacy format; nothing
of it is logged.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, cast

import structlog
from multidict import CIMultiDict

from gateway.admission.load import ConnectionTracker
from gateway.http import responses
from gateway.http.delivery import find_seconds_since_last_bytes, is_acknowledged
from gateway.http.request import BodyIncomplete, ClientConnection, HeaderFields, HttpRequest
from gateway.http.request_reader import generate_hex_id
from gateway.http.responses import HttpResponse
from gateway.observability import logs, metrics
from gateway.server.request_parser import MAX_PARSED_BYTES, MalformedRequest, RequestParser
from mappings import errors
from mappings.failures import Problem

MAX_QUEUED_REQUESTS = 32
"""Pipelined requests that wait, above which nothing more is parsed, and then nothing read."""

MAX_UNREAD_BODY_BYTES = 128 * 1024
"""Bytes of a body that its handler has not read, above which nothing more is read."""

BODY_DRAIN_SECONDS = 5
"""Seconds to drain the rest of a body after an early response, so that the client reads that."""

WRITE_STALL_SECONDS = 30
"""A connection is closed if its client reads no byte of a response for this time."""

RESET_RELEVANT_SECONDS = 60
"""A later reset does not concern the response: load balancers reset idle connections."""

CLOSE_SECONDS = 5
"""Seconds that a connection remains half-closed after its last response, to notice a reset."""

MIN_UNREAD_SECONDS = 0.02
"""Bytes that were in the kernel for less were read at once: it counts time in ticks of 4 ms."""

MALFORMED_HTTP = Problem("invalid_field", "The request is not well-formed HTTP.")

log = structlog.get_logger()

RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class ConnectionServer(Protocol):
    """The server of a connection."""

    handler: RequestHandler
    extra_headers: Mapping[str, str]
    tracker: ConnectionTracker
    connections: set[Connection]
    request_tasks: set[asyncio.Task[None]]
    is_retiring: bool


class Connection(ClientConnection, asyncio.Protocol):
    """A client connection; its requests run one after another, in one task."""

    transport: asyncio.Transport | None = None
    tcp_transport: asyncio.Transport
    _task: asyncio.Task[None] | None = None
    _next_request: asyncio.Future[None] | None = None
    """For which the task waits."""

    def __init__(self, server: ConnectionServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        super().__init__(self._loop.time)
        self._queue: deque[HttpRequest | MalformedRequest] = deque()
        self._parser = RequestParser(self._queue, self._pause_or_resume_reading)
        self._current_request: HttpRequest | None = None
        """The request whose handler runs."""
        self._is_answering = self._is_serving = False
        """Until the response is sent; until the next request may follow."""
        self._ignores_input = self._is_reading_paused = self._is_last_request = False
        self._unparsed = b""
        self.is_retiring = server.is_retiring
        self.is_writing_paused = False
        self._remote: str | None = None
        self._read_at = self._last_response_at = 0.0
        self._on_reset: Callable[[], None] | None = None
        self._peer_closed: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._unread_response_bytes = 0
        self._stalled_since = 0.0

    # The connection as the server and the tracker use it

    def track_tls_handshake(self, tcp_transport: asyncio.Transport) -> None:
        """Tracks a new connection that starts with a TLS handshake."""
        self.tcp_transport = tcp_transport
        self._server.tracker.register_connection(
            self, _get_peer_address(tcp_transport), shakes_hands=True
        )

    def abort(self) -> None:
        """Closes immediately: no response is pending."""
        self.tcp_transport.abort()

    def close_after_request(self) -> None:
        """Closes the connection once its request is answered; immediately if it has none."""
        self.is_retiring = self._is_last_request = True
        if not self._is_serving and self.transport is not None:
            self.transport.close()

    def is_stalled(self, now: float) -> bool:
        """Whether the client has read no response data for ``WRITE_STALL_SECONDS``."""
        buffered_bytes = self.transport.get_write_buffer_size() if self.transport is not None else 0
        # Only a smaller buffer is progress: a larger one shows that the handler wrote more.
        if not self._unread_response_bytes or buffered_bytes < self._unread_response_bytes:
            self._stalled_since = now
        self._unread_response_bytes = buffered_bytes
        return bool(buffered_bytes) and now - self._stalled_since >= WRITE_STALL_SECONDS

    # The connection as handlers use it

    def write(self, data: bytes | memoryview) -> None:
        transport = self.transport
        # A closed transport drops writes silently, and the response would count as sent.
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        transport.write(data)

    async def drain(self) -> None:
        if self._writable is not None:
            # Shielded: the future is the connection's, not that of the response which waits.
            await asyncio.shield(self._writable)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._remote = _get_peer_address(transport)
        if hasattr(self, "tcp_transport"):
            self.mark_handshake_complete()
        else:
            self.tcp_transport = self.transport
            self._server.tracker.register_connection(self, self._remote)
        self._server.connections.add(self)
        # Notices clients that have lost their network, and send nothing more.
        if connection := transport.get_extra_info("socket"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        # Not by the event loop's clock, which may be as old as the last callback took.
        self._read_at = time.monotonic()
        # A client that sends another request has read the response before it, whatever ends that. An
        # empty line is none: some clients append it to a body (RFC 9112, section 2.2).
        if data[:1] in (b"\r", b"\n"):
            pass
        elif self._current_request is None:
            self._on_reset = None
        elif self._current_request.is_response_started:
            self._current_request.on_reset = None
        if len(data) <= MAX_PARSED_BYTES and not self._unparsed:
            self._parse(data)
        else:
            self._unparsed += data
            self._parse_while_requests_may_wait()
        # Otherwise the data belongs to a head, which has its own timeout.
        if self._is_answering or self._queue:
            self.start_request()
            if not self._is_serving:
                self._serve_next_request()
        else:
            self.mark_header_started()
        if len(self._queue) > 1 or self._unparsed or self._parser.body is not None:
            self._pause_or_resume_reading()

    def pause_writing(self) -> None:
        """Ends the request's work: its response fills the buffer, so it is no longer running."""
        self.is_writing_paused = True
        self._writable = self._loop.create_future()
        self.mark_response_in_progress()

    def resume_writing(self) -> None:
        self._wake_writer(None)
        # The client has read some of the response, so its time to read starts again.
        self.mark_response_in_progress()

    def connection_lost(self, exc: BaseException | None) -> None:
        request, body = self._current_request, self._parser.body
        if isinstance(exc, ConnectionError):
            elapsed = self._loop.time() - self._last_response_at
            if self._on_reset is not None and elapsed <= RESET_RELEVANT_SECONDS:
                self._on_reset()
            # A reset also discards unacknowledged bytes, which would look as if all had arrived.
            if request is not None and request.on_reset:
                request.on_reset()
        # Determined while the socket is still open.
        is_received = is_acknowledged(self.transport, self.tcp_transport)
        self._server.tracker.connections.discard(self)
        self._server.connections.discard(self)
        self.transport = None
        self._ignores_input = True
        self._queue.clear()
        self._unparsed = b""
        if self._next_request is not None and not self._next_request.done():
            self._next_request.set_result(None)
        if self._peer_closed is not None and not self._peer_closed.done():
            self._peer_closed.set_result(None)
        self._wake_writer(ConnectionResetError("the client has disconnected"))
        if body is not None:
            body.fail()
        self._parser.close()
        if request is not None and request.on_disconnect:
            request.on_disconnect(is_received)

    def _wake_writer(self, error: Exception | None) -> None:
        self.is_writing_paused = False
        writable, self._writable = self._writable, None
        if writable is None or writable.done():
            return
        if error is None:
            writable.set_result(None)
        else:
            writable.set_exception(error)
            writable.exception()  # there may be no writer, and asyncio would log it

    # Requests

    def _parse_while_requests_may_wait(self) -> None:
        """Parses what was read, but no more once ``MAX_QUEUED_REQUESTS`` wait."""
        rest = memoryview(self._unparsed)
        while rest and len(self._queue) < MAX_QUEUED_REQUESTS and not self._ignores_input:
            self._parse(rest[:MAX_PARSED_BYTES])
            rest = rest[MAX_PARSED_BYTES:]
        self._unparsed = b"" if self._ignores_input else bytes(rest)

    def _parse(self, part: bytes | memoryview) -> None:
        body, earlier_count = self._parser.body, len(self._queue)
        try:
            self._parser.feed(part)
        except MalformedRequest as malformed:
            self._refuse_input(malformed, body, earlier_count)

    def _refuse_input(
        self, malformed: MalformedRequest, earlier_body: object, earlier_count: int
    ) -> None:
        """Refuses what was read, and ignores whatever follows."""
        self._ignores_input = True
        body = self._parser.body
        if body is not None and body is earlier_body:
            body.fail()  # the request to which it belongs is answered with an error
            return
        # Nothing of a piece of data that contains an error is executed.
        while len(self._queue) > earlier_count:
            self._queue.pop()
        self._queue.append(malformed)

    def _pause_or_resume_reading(self) -> None:
        body = self._parser.body
        must_pause = (
            bool(self._unparsed)
            or len(self._queue) >= MAX_QUEUED_REQUESTS
            or (body is not None and body.unread_bytes > MAX_UNREAD_BODY_BYTES)
        )
        if must_pause is self._is_reading_paused or self.transport is None:
            return
        self._is_reading_paused = must_pause
        if must_pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _serve_next_request(self) -> None:
        self._is_serving = True
        if self._task is None:
            self._task = self._loop.create_task(self._serve_requests())
        elif self._next_request is not None:
            self._next_request.set_result(None)
            self._next_request = None
        self._server.request_tasks.add(self._task)

    async def _serve_requests(self) -> None:
        """Serves the requests until the connection ends."""
        task = cast("asyncio.Task[None]", self._task)
        is_kept = False
        try:
            while self._queue:
                entry, is_kept, self._is_answering = self._queue.popleft(), False, True
                if isinstance(entry, HttpRequest):
                    is_kept = await self._serve(entry)
                else:
                    await self._answer_malformed_request(entry)
                del entry  # it may have a large body
                if self._unparsed and len(self._queue) < MAX_QUEUED_REQUESTS:
                    self._parse_while_requests_may_wait()
                if self._is_reading_paused:
                    self._pause_or_resume_reading()
                # A connection that retires ends with a response that says so: after another, its
                # client may just be sending the next request.
                if not is_kept or self._is_last_request or self.transport is None:
                    return
                if self._queue:
                    await asyncio.sleep(0)  # many may be queued, and others must not wait for all
                    continue
                if self._ignores_input:
                    return
                self._is_serving = False
                self._server.request_tasks.discard(task)
                self._next_request = self._loop.create_future()
                await self._next_request
        finally:
            self._server.request_tasks.discard(task)
            self._is_answering = self._is_serving = False
            self._ignores_input = True
            if self.transport is not None:
                self.transport.close()

    async def _serve(self, request: HttpRequest) -> bool:
        """Answers a request; returns whether another may follow."""
        request.connection, request.remote = self, self._remote
        is_kept = False
        self._current_request = request
        request.arrived_at = (
            time.monotonic() if request.method == "GET" else self._find_arrival_time()
        )
        try:
            try:
                response = await self._server.handler(request)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - no client may see a traceback
                response = self._answer_failed_request(request, error)
            finally:
                self._current_request = None
                # It refers to the request: a cycle would wait for the garbage collector.
                request.on_disconnect = None
            if not response.is_sent:
                await response.send(request)
            self._is_answering = False
            if self._queue:
                self.mark_response_in_progress()
            else:
                self.mark_idle()
            is_kept = not response.closes_connection
            self._on_reset = request.on_reset
            if self._on_reset is not None or not request.body.is_complete:
                is_kept = await self._finish_write_or_early_response(request, is_kept=is_kept)
        except ConnectionError:
            pass  # the client has disconnected
        return is_kept

    def _answer_failed_request(self, request: HttpRequest, error: Exception) -> HttpResponse:
        log.error("connection_failed", **logs.describe_exception(error))
        # A second status line in a body would look like a part of the first response.
        if request.is_response_started:
            raise ConnectionAbortedError("the response is incomplete") from error
        return self._build_error_response(errors.INTERNAL_ERROR, generate_hex_id())

    async def _finish_write_or_early_response(self, request: HttpRequest, *, is_kept: bool) -> bool:
        """Waits for a reset, and for what is left of the body; returns whether others may follow."""
        # Half-closed only after writes, where a reset makes an identical request a retry.
        if self._on_reset is not None:
            self._last_response_at = self._loop.time()
            if not is_kept:
                await self._half_close_and_wait_for_peer()
        body = request.body
        # If the client was too slow, draining the rest would take another BODY_DRAIN_SECONDS.
        if not body.is_complete and not request.has_body_timed_out:
            with suppress(TimeoutError, BodyIncomplete):
                async with asyncio.timeout(BODY_DRAIN_SECONDS):
                    while await body.read_available():
                        pass
        return is_kept and body.is_complete

    async def _half_close_and_wait_for_peer(self) -> None:
        """Waits for the client to close: the kernel does not report a reset on a closed socket."""
        if self.transport is None or not self.transport.can_write_eof():
            return
        self.transport.write_eof()
        self._peer_closed = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._peer_closed

    async def _answer_malformed_request(self, malformed: MalformedRequest) -> None:
        metrics.invalid_http.inc()
        request_id = generate_hex_id()
        problem = errors.NOT_FOUND if malformed.has_unknown_method else MALFORMED_HTTP
        response = self._build_error_response(problem, request_id)
        log.warning(
            "invalid_http_request",
            request_id=request_id,
            **{
                "http.response.status_code": response.status,
                "error.type": malformed.error_type,
            },
        )
        with suppress(ConnectionError):
            request = HttpRequest("", "", HeaderFields(CIMultiDict()))
            request.connection = self
            await response.send(request)

    def _build_error_response(self, problem: Problem, request_id: str) -> HttpResponse:
        legacy_response = responses.build_error_response(
            errors.build_legacy_error(problem), closes_connection=True
        )
        return responses.build_http_response(
            legacy_response, request_id, deprecation_headers=self._server.extra_headers
        )

    def _find_arrival_time(self) -> float:
        """Returns when the request that was read last arrived, by the event loop's clock.

        It may have waited in the kernel while the process was stopped or busy, which it may also
        have been since the request was read.
        """
        waited_seconds = find_seconds_since_last_bytes(self.tcp_transport)
        now = time.monotonic()
        unread_seconds = waited_seconds - (now - self._read_at)
        if unread_seconds > MIN_UNREAD_SECONDS:
            return now - waited_seconds
        return self._read_at


def _get_peer_address(transport: asyncio.BaseTransport) -> str | None:
    peer = transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else None
