"""The connections to one origin of a service: opening, reuse, and their limit.

aiohttp's client is not used: cookies, redirects, middlewares, decoding and
retries are not needed, and cost more than the rest of a read even if they are disabled.
"""

import asyncio
import base64
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, cast

import aiohappyeyeballs
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from yarl import URL

from gateway.config.settings import Settings, Upstream
from gateway.http.tls import create_client_ssl_context
from gateway.upstream.http_connection import ResponseLost, UpstreamConnection


class Egress(NamedTuple):
    """The way to an origin; ``proxy_authorization`` is the value of Proxy-Authorization."""

    ssl_context: ssl.SSLContext | None = None
    proxy: URL | None = None
    proxy_authorization: str = ""


def build_egress_by_environment(
    settings: Settings, addresses: Mapping[str, str]
) -> dict[str, Egress]:
    """Builds the options for addresses by environment; raises ConfigurationError."""
    upstream = settings.upstream
    environments = settings.environments.map_configured_environments_by_name()
    proxy = URL(upstream.proxy) if upstream.proxy else None
    authorization = ""
    if credentials := upstream.proxy_credentials.get_secret_value():
        authorization = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    egress_by_environment = {}
    for name, address in addresses.items():
        if not address.startswith("https://"):
            # It is on the same host or network: the proxy is not used for it.
            egress_by_environment[name] = Egress()
            continue
        if ca_file := environments[name].ca_file:
            context = create_client_ssl_context(ca_file, f"environments.{name}.ca_file")
        else:
            context = create_client_ssl_context(upstream.ca_file)
        egress_by_environment[name] = Egress(context, proxy, authorization)
    return egress_by_environment


IDLE_TIMEOUT_SECONDS = 4
"""Less than the five seconds after which common servers close an idle connection: a write on a
connection that is being closed would be in doubt."""

CONNECT_TIMEOUT_SHARE = 1 / 5
"""Share of a call's timeout that connecting one socket may take."""

HAPPY_EYEBALLS_SECONDS = 0.25
"""Time until an address of the other IP version is tried too (RFC 8305, section 5)."""


class Origin:
    """The address of a service and its connections; ``path`` is the path prefix of the address."""

    def __init__(self, address: URL, egress: Egress, settings: Upstream) -> None:
        self.path = address.raw_path.rstrip("/")
        self.host_header = address.host_port_subcomponent or ""
        self._host, self._port = address.raw_host or "", address.port or 0
        self._egress = egress
        self._max_connections = settings.connections
        self._connect_seconds = settings.timeout_seconds * CONNECT_TIMEOUT_SHARE
        self._connections: set[UpstreamConnection] = set()
        self._opening_count = 0
        # The most recently used is taken first, so that those that are not needed become old.
        self._idle: list[UpstreamConnection] = []
        self._waiters: deque[asyncio.Future[UpstreamConnection | None]] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def connection_counts(self) -> dict[str, int]:
        """Connections in use and idle."""
        idle = len(self._idle)
        return {"active": len(self._connections) - idle, "idle": idle}

    def take_idle_connection(self) -> UpstreamConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    async def wait_for_connection(self, deadline: float) -> UpstreamConnection:
        """Opens a connection, or waits for one if there are too many.

        The caller has to release it. The call may wait, so it is signed only afterwards. Raises
        ResponseLost, and TimeoutError at the deadline, a time of the monotonic clock.
        """
        async with asyncio.timeout_at(deadline):
            while len(self._connections) + self._opening_count >= self._max_connections:
                if (connection := await self._wait_for_released_connection()) is not None:
                    return connection
            self._opening_count += 1
            try:
                connection = await self._open_connection()
                self._connections.add(connection)
            finally:
                self._opening_count -= 1
                # Also after a failure: another caller may open one instead.
                if len(self._connections) + self._opening_count < self._max_connections:
                    self._wake_waiter(None)
        return connection

    def release(self, connection: UpstreamConnection) -> None:
        """Keeps a connection for the next call, unless it cannot be used again."""
        if not connection.end_exchange():
            connection.close()
        elif not (self._waiters and self._wake_waiter(connection)):
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._idle_timer is None:
                self._idle_timer = asyncio.get_running_loop().call_later(
                    IDLE_TIMEOUT_SECONDS, self._close_idle
                )

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in tuple(self._connections):
            connection.close()

    async def _wait_for_released_connection(self) -> UpstreamConnection | None:
        """Waits for a released connection; None if one may be opened instead."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            connection = await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # It was handed over in the same round of the event loop.
                connection = waiter.result()
                if not self._wake_waiter(connection) and connection is not None:
                    connection.close()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise
        return connection if connection is None or connection.is_usable else None

    def _wake_waiter(self, connection: UpstreamConnection | None) -> bool:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _close_idle(self) -> None:
        now = time.monotonic()
        # The list is in the order of release, except that the newest are taken from its end.
        while self._idle and now - self._idle[0].idle_since >= IDLE_TIMEOUT_SECONDS:
            self._idle.pop(0).close()
        self._idle_timer = None
        if self._idle:
            self._idle_timer = asyncio.get_running_loop().call_at(
                self._idle[0].idle_since + IDLE_TIMEOUT_SECONDS, self._close_idle
            )

    def _forget_connection(self, connection: UpstreamConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake_waiter(None)

    # Opening

    async def _open_connection(self) -> UpstreamConnection:
        proxy = self._egress.proxy
        host, port = (proxy.raw_host or "", proxy.port or 0) if proxy else (self._host, self._port)
        name = ("the proxy " if proxy else "") + _format_authority(host, port)
        try:
            connected_socket = await self._connect_socket(host, port)
            return await self._start_connection(connected_socket)
        except TimeoutError:
            lost = ResponseLost(f"cannot connect to {name}: timed out", is_connection_failure=True)
        except OSError as error:
            if isinstance(error, ssl.SSLError):  # TLS is with the service, through a proxy too
                name = _format_authority(self._host, self._port)
            reason = f"cannot connect to {name}: {_describe_connect_error(error)}"
            lost = ResponseLost(reason, is_connection_failure=True)
        # Raised outside the except block, because the cause's text may name more than the reason.
        raise lost

    async def _connect_socket(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        async with asyncio.timeout(self._connect_seconds):
            return await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS, interleave=1
            )

    async def _start_connection(self, connected_socket: socket.socket) -> UpstreamConnection:
        loop, context = asyncio.get_running_loop(), self._egress.ssl_context
        if self._egress.proxy is None:
            _transport, connection = await loop.create_connection(
                lambda: UpstreamConnection(self._forget_connection),
                sock=connected_socket,
                ssl=context,
                server_hostname=self._host if context else None,
            )
            return connection
        transport, tunnel = await loop.create_connection(_Tunnel, sock=connected_socket)
        try:
            authority = _format_authority(self._host, self._port)
            await tunnel.open(authority, self._egress.proxy_authorization)
            connection = UpstreamConnection(self._forget_connection)
            tls_transport = await loop.start_tls(
                transport, connection, cast("ssl.SSLContext", context), server_hostname=self._host
            )
        except BaseException:
            transport.abort()
            raise
        if tls_transport is None:
            raise ConnectionResetError
        connection.connection_made(tls_transport)
        return connection


def create_origins(settings: Settings, addresses: Mapping[str, str]) -> dict[str, Origin]:
    """Creates the origins of addresses by environment; raises ConfigurationError.

    Each environment has its own connections, so that a hanging sandbox does not use up those to
    live.
    """
    egress_by_environment = build_egress_by_environment(settings, addresses)
    return {
        name: Origin(URL(address), egress_by_environment[name], settings.upstream)
        for name, address in addresses.items()
    }


def _format_authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _describe_connect_error(error: OSError) -> str:
    """Describes why a connection could not be opened, without its address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} ({error.reason})"
    if isinstance(error, ssl.SSLError | socket.gaierror) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno).lower()


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a connection to the service (RFC 9110, section 9.3.6)."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._parser = HttpResponseParser(self)
        self._response: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, authority: str, authorization: str) -> None:
        """Raises ResponseLost if the proxy refuses."""
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        if authorization:
            lines.append(f"Proxy-Authorization: {authorization}")
        self._transport.write("\r\n".join([*lines, "", ""]).encode())
        await self._response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self._response.done():
                self._response.set_exception(ResponseLost("an answer that is not HTTP"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._response.done() or status < 200:
            return
        if status == 200:
            self._response.set_result(None)
        else:
            # No connection failure: the proxy responds, and another connection would not help.
            reason = f"the proxy refuses to connect (status {status})"
            self._response.set_exception(ResponseLost(reason))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._response.done():
            self._response.set_exception(exc or ConnectionResetError())
