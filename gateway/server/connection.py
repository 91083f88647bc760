"""An HTTP server on aiohttp's low-level API, with the gateway's own error responses and logs.

aiohttp's error pages are plain text, and its 400 page and log repeat a malformed header, even an API
key. Here every response has the legacy format, and nothing that a client sent is logged.
"""

from __future__ import annotations

import asyncio
import re
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

from gateway.admission.load import Bounds, ConnectionTracker
from gateway.http import responses
from gateway.http.delivery import is_acknowledged
from gateway.http.request_ids import generate_id
from gateway.http.request_reader import (
    ARRIVED_AT,
    BODY_TIMED_OUT,
    CONNECTION,
    IS_LAST_RESPONSE,
    ON_DISCONNECT,
    ON_RESET,
    UNDERLYING_TRANSPORT,
    ends_connection,
)
from gateway.http.tls import Certificate, start_eagerly
from gateway.observability import logs, metrics
from mappings import errors
from mappings.failures import Problem

LINGERING_SECONDS = 5
"""After an early response the rest of the body is drained this long, so that the client reads it."""

TLS_END_SECONDS = 5
"""How long to wait for the client's TLS close_notify."""

WRITE_STALL_SECONDS = 30
"""A connection is closed if its client reads no byte of a response for this time."""

ADMIN_BOUNDS = Bounds(most=64, head_seconds=10, idle_seconds=75, pressed_seconds=2)
"""The admin port's own bounds; its sockets are among ``file_descriptors.OTHER_DESCRIPTORS``."""

RESET_SECONDS = 60
"""A later reset does not concern the response: load balancers reset idle connections."""

CLOSE_SECONDS = 5
"""How long a connection stays half closed after its last response, so that a reset is noticed."""

RETIRE_SECONDS = 5
"""How long a replaced worker waits for the next requests on its connections."""

END_SECONDS = 1
"""The same for a worker that is not replaced."""

MALFORMED = Problem("invalid_field", "The request is not well-formed HTTP.")

NO_ACCESS_LOG: Any = None
"""Disables aiohttp's access log, because the handler writes one; its type does not allow None."""

log = structlog.get_logger()


_VERSIONS = (HttpVersion10, HttpVersion11)
_WELL_FORMED = re.compile(r"b'[A-Z]{1,20} /\S* HTTP/1\.[01]")


def _passes_over(data: bytes, message: RawRequestMessage) -> bool:
    """Return whether aiohttp drops the data after a request, as it does after ``Upgrade: h2c``.

    The connection must be closed after the response: a client that pipelined a second request would
    wait for its response forever.
    """
    if not message.upgrade or message.headers.get("Upgrade", "").lower() == "websocket":
        return False
    rest = data.partition(b"\r\n\r\n")[2]
    return len(rest) > int(message.headers.get("Content-Length", 0))


def _address(transport: asyncio.BaseTransport) -> str | None:
    peer = transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else None


class Connection(RequestHandler):
    """One client connection."""

    __slots__ = (
        "_answered",
        "_answered_at",
        "_closed",
        "_ended",
        "_latest",
        "_plain",
        "_reset",
        "_tracker",
        "_unread",
        "_unread_since",
    )

    def __init__(self, tracker: ConnectionTracker[Connection], *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._tracker = tracker
        self._plain: Any = None
        self._answered = 0
        self._answered_at = 0.0
        self._closed: asyncio.Future[None] | None = None
        self._ended = False
        self._reset: Callable[[], None] | None = None
        self._unread = 0
        self._unread_since = 0.0
        self._latest: Any = None
        """The body of the last request received; only this one can be incomplete."""

    def arrives(self, plain: asyncio.Transport) -> None:
        """Track a new connection that starts with a TLS handshake."""
        self._plain = plain
        self._tracker.open(self, _address(plain), shakes_hands=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._plain is None:
            self._plain = transport
            self._tracker.open(self, _address(transport))
        else:
            self._tracker.end_handshake(self)

    @property
    def beneath(self) -> asyncio.Transport | None:
        return None if self._plain is self.transport else self._plain

    def end(self) -> None:
        """Close immediately: no response is pending."""
        if self._plain is not None:
            self._plain.abort()

    def authenticate(self, tenant: Hashable) -> None:
        self._tracker.authenticate(self, tenant)

    def start_work(self) -> None:
        self._tracker.start_work(self)

    def end_work(self) -> None:
        self._tracker.end_work(self)

    def pause_writing(self) -> None:
        """The response fills the buffer, so its request is no longer running."""
        super().pause_writing()
        self._tracker.end_work(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._tracker.end_work(self)

    def is_stalled(self, now: float) -> bool:
        """Return whether the client has read no response data for ``WRITE_STALL_SECONDS``."""
        waiting = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if not self._unread or waiting < self._unread:
            self._unread_since = now
        self._unread = waiting
        return bool(waiting) and now - self._unread_since >= WRITE_STALL_SECONDS

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        super().data_received(data)
        if self._request_count > self._answered:
            self._tracker.start_request(self)
        else:
            self._tracker.start_head(self)
        self._refuse_versions()
        if not self._messages:
            return
        last, body = self._messages[-1]
        if not isinstance(last, _ErrInfo):
            self._latest = body
            self._ended = _passes_over(data, last)
        elif self._cut_off():
            # aiohttp would answer twice: the request with this body, and then the error.
            self._messages.pop()
            self._request_count -= 1
            self._ended = True

    def _refuse_versions(self) -> None:
        """Refuse HTTP/0.9, whose responses have no status, and HTTP/2.0, which is binary."""
        for place, (message, _body) in enumerate(self._messages):
            if not isinstance(message, _ErrInfo) and message.version not in _VERSIONS:
                error = BadStatusLine()
                self._messages[place] = (_ErrInfo(400, error, ""), EMPTY_PAYLOAD)

    def _cut_off(self) -> bool:
        """Fail the pending read of an incomplete body; return False if the body is complete."""
        if self._latest is None or self._latest.is_eof():
            return False
        self._latest.set_exception(web.RequestPayloadError("malformed"))
        self._latest.feed_eof()
        return True

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._reset = request.get(ON_RESET)
        self._answered += 1
        if self._request_count == self._answered:
            self._tracker.become_idle(self)
        if request.get(BODY_TIMED_OUT):
            self._lingering_time = 0
        if self._ended and self._answered == self._request_count:
            self.close()
        if self._reset is not None:
            self._answered_at = self._loop.time()
            if not resp.keep_alive:
                await self._half_close()
        return finished

    @property
    def _is_fresh(self) -> bool:
        return self._loop.time() - self._answered_at <= RESET_SECONDS

    async def _half_close(self) -> None:
        """Wait for the client to close: the kernel does not report a reset on a closed socket."""
        if self.transport is None or not self.transport.can_write_eof():
            return
        self.transport.write_eof()
        self._closed = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._closed

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._reset is not None and isinstance(exc, ConnectionError) and self._is_fresh:
            self._reset()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        request = self._current_request
        beneath = request.get(UNDERLYING_TRANSPORT) if request is not None else None
        has_all = is_acknowledged(self.transport, beneath)
        self._tracker.close(self)
        super().connection_lost(exc)
        if request is not None and (deserted := request.get(ON_DISCONNECT)):
            deserted(has_all)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what the client sent
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a response has been started; no other can be sent")
        metrics.invalid_http.inc()
        request_id = generate_id()
        problem = MALFORMED if status < 500 else errors.INTERNAL_ERROR
        if isinstance(exc, BadHttpMethod) and _WELL_FORMED.search(str(exc)):
            problem = errors.NOT_FOUND  # a method that no path has
        said = responses.build_error_response(
            errors.build_legacy_error(problem), closes_connection=True
        )
        log.warning(
            "invalid_http_request",
            request_id=request_id,
            **{"http.response.status_code": said.status, "error.type": type(exc).__name__},
        )
        # The manager may be the admin server, which has no extra headers.
        told = getattr(self._manager, "told", responses.NO_HEADERS)
        return responses.build_web_response(said, request_id, deprecation_headers=told)

    def log_exception(self, *_args: Any, **named: Any) -> None:
        error = named.get("exc_info")
        if isinstance(error, web.RequestPayloadError):
            return  # the rest of a body after the response; nothing is left to report
        log.error(
            "connection_failed",
            **logs.describe_exception(error if isinstance(error, BaseException) else None),
        )


class Handshake(asyncio.Protocol):
    """The TLS handshake of a connection.

    The event loop's own TLS servers are not used: they do not expose unfinished handshakes, which
    must count as connections and be closed like them.
    """

    def __init__(self, connection: Connection, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._early: list[bytes] = []
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        self._connection.arrives(plain)
        if plain.is_closing():  # the tracker has closed it for others
            return
        # Started eagerly, so that TLS reads from the first byte: uvloop would otherwise give this
        # protocol the data that arrives before.
        self._shaking = asyncio.ensure_future(
            self._shake(plain, start_eagerly(self._secured(plain)))
        )
        self._server.handshakes.add(self._shaking)
        self._shaking.add_done_callback(self._server.handshakes.discard)

    def data_received(self, data: bytes) -> None:
        """Buffer a request that arrives before this process has noticed the end of the handshake."""
        self._early.append(data)

    async def _shake(
        self, plain: asyncio.Transport, securing: Awaitable[asyncio.Transport | None]
    ) -> None:
        secure = None
        try:
            secure = await securing
        except OSError:
            pass  # no TLS, no common version or cipher, or a timeout: no response is possible
        finally:
            if secure is None:
                plain.abort()
                self._server.tracker.close(self._connection)
        if secure is not None:
            secure.set_protocol(self._connection)
            self._connection.connection_made(secure)
            for part in self._early:
                self._connection.data_received(part)

    async def _secured(self, plain: asyncio.Transport) -> asyncio.Transport | None:
        certificate = self._server.certificate
        if certificate is None:
            return None
        secure = await asyncio.get_running_loop().start_tls(
            plain,
            self,
            certificate.context,
            server_side=True,
            ssl_handshake_timeout=self._server.handshake_seconds + TLS_END_SECONDS,  # ended before
            ssl_shutdown_timeout=TLS_END_SECONDS,
        )
        return None if secure is None or secure.is_closing() else secure


class Server(web.Server):
    """Creates a Connection for each client. As a context manager it runs their timeouts."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bounds: Bounds,
        certificate: Certificate | None = None,
        told: Mapping[str, str] = responses.NO_HEADERS,
    ) -> None:
        async def handled(request: web.BaseRequest) -> web.StreamResponse:
            is_last: Callable[[], bool] = partial(self._is_last, request)
            request[IS_LAST_RESPONSE] = is_last
            connection = cast("Connection", request.protocol)
            request[CONNECTION] = connection
            request[ARRIVED_AT] = self.tracker.estimate_arrival()
            if beneath := connection.beneath:
                request[UNDERLYING_TRANSPORT] = beneath
            response = await handler(request)
            if self._is_last(request) and not response.prepared:
                response.force_close()
            return response

        super().__init__(handled)
        self.told = told
        """Headers of responses that are created here, to requests that are not valid HTTP."""
        self._retiring = False
        self._idle_seconds = bounds.idle_seconds
        self.handshake_seconds = bounds.head_seconds
        self.certificate = certificate
        self.handshakes: set[asyncio.Task[None]] = set()
        self.tracker: ConnectionTracker[Connection] = ConnectionTracker(bounds, self._loop.time)
        self._looking: list[asyncio.Task[None]] = []

    def _is_last(self, request: web.BaseRequest) -> bool:
        return self._retiring or ends_connection(request)

    async def __aenter__(self) -> Self:
        self._looking.append(asyncio.ensure_future(self.tracker.sweep()))
        if self.certificate:
            self._looking.append(asyncio.ensure_future(self.certificate.watch_files()))
        return self

    async def __aexit__(self, *_: object) -> None:
        ending = [*self._looking, *self.handshakes]
        for one in ending:
            one.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def retire(self, seconds: float) -> None:
        """Make each response its connection's last; return when no connection is left.

        Returns after ``seconds`` in any case: connections without a request until then can be closed.
        Closing them immediately would lose requests that clients are just sending.
        """
        self._retiring = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections:  # noqa: ASYNC110 - aiohttp has no event for the last one's end
                    await asyncio.sleep(0.05)

    def __call__(self) -> RequestHandler:
        connection = self._connection()
        if self.certificate is None:
            return connection
        return cast("RequestHandler", Handshake(connection, self))

    def _connection(self) -> Connection:
        return Connection(
            self.tracker,
            self,
            loop=self._loop,
            access_log=NO_ACCESS_LOG,
            keepalive_timeout=self._idle_seconds,
            lingering_time=LINGERING_SECONDS,
            auto_decompress=False,  # a body that is forwarded must be unchanged
        )


class _AdminServer(web.Server):
    """Answers malformed requests like the client port, with its own connection bounds."""

    def __init__(self, made: web.Server) -> None:
        super().__init__(self._handle, request_factory=made.request_factory)
        self._handler = made.request_handler
        self.tracker: ConnectionTracker[Connection] = ConnectionTracker(
            ADMIN_BOUNDS, self._loop.time
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handler(request)
        if ends_connection(request) and not response.prepared:
            response.force_close()
        return response

    def __call__(self) -> RequestHandler:
        idle = ADMIN_BOUNDS.idle_seconds
        return Connection(
            self.tracker, self, loop=self._loop, access_log=NO_ACCESS_LOG, keepalive_timeout=idle
        )


class AdminRunner(web.AppRunner):
    """Runs the admin application on connections whose errors do not repeat the request."""

    _sweeping: asyncio.Task[None] | None = None

    async def _make_server(self) -> web.Server:
        server = _AdminServer(await super()._make_server())
        self._sweeping = asyncio.ensure_future(server.tracker.sweep())
        return server

    async def cleanup(self) -> None:
        await super().cleanup()
        if self._sweeping is not None:
            self._sweeping.cancel()
