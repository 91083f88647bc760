"""A single attempt to send a request with its client's credentials: it is sent at most once."""

from __future__ import annotations

import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp
from aiohttp.http import HttpProcessingError

if TYPE_CHECKING:
    from aiohttp.connector import Connection

IDLE_TIMEOUT_SECONDS = 4
"""Less than the five seconds after which common servers close an idle connection: a write on a
connection that is being closed would be in doubt."""


class ResponseLost(Exception):
    """No usable response arrived; after a connection failure, another connection may succeed."""

    def __init__(self, reason: str, *, is_connection_failure: bool = False) -> None:
        super().__init__(reason)
        self.is_connection_failure = is_connection_failure


class UnusableConnection(ResponseLost):
    """The connection cannot be used, and nothing was sent on it."""


class Fence(Protocol):
    """Guards a write that only one process may send: its fencing token must still be current."""

    @property
    def is_fence_recent(self) -> bool:
        """Whether ownership was confirmed so recently that no other process can have taken it."""

    async def verify_fence(self) -> None:
        """Confirms ownership; raises if another process owns the write."""


@dataclass(slots=True)
class SingleSend:
    """A client middleware that sends one request at most once.

    ``path`` must equal the target in the request line. ``has_left``: whether a byte of the request
    may have reached the service; ``sent_at`` is a time of the monotonic clock.
    """

    path: str
    fence: Fence | None = None
    has_left: bool = False
    sent_at: float = 0.0

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        cast("SingleSendRequest", request).attempt = self
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as error:
            lost = convert_to_response_lost(error)
        # This error replaces aiohttp's own: after a dropped connection aiohttp would silently send
        # GET, PUT and DELETE again.
        raise lost

    async def verify_fence_before_sending(self) -> None:
        """Confirms the ownership of a write once there is a connection; raises what the fence does."""
        if self.has_left:
            # A bug in aiohttp or here: failing is better than paying twice.
            raise RuntimeError("a request is sent once")
        self.sent_at = time.monotonic()
        while self.fence and not self.fence.is_fence_recent:
            await self.fence.verify_fence()
            self.sent_at = time.monotonic()
        self.has_left = True


class SingleSendRequest(aiohttp.ClientRequest):
    """A request that is checked when it has a connection, so that waiting for one changes nothing."""

    attempt: SingleSend

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # Data that arrived while it was idle (a proxy's 408) would be taken for the answer.
        if conn.protocol is None or conn.protocol.should_close or not conn.protocol.is_connected():
            # Checked first, so that the caller may use another connection even for a write.
            raise UnusableConnection("no connection that can be used", is_connection_failure=True)
        # yarl may have normalized the target, and then the client's signature would not match.
        if self.url.raw_path_qs != self.attempt.path:
            raise ValueError("the target would not be sent as it was given")
        await self.attempt.verify_fence_before_sending()
        return await super().send(conn)


def describe_connect_error(error: OSError) -> str:
    """Describes why a connection could not be opened, without its address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} ({error.reason})"
    if isinstance(error, ssl.SSLError | socket.gaierror) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno).lower()


def _describe_connector_error(error: aiohttp.ClientConnectorError) -> str:
    """Describes a connect error; aiohttp's own message mentions TLS also for plain HTTP."""
    address = f"[{error.host}]" if ":" in error.host else error.host
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        address = f"the proxy {address}"
    return f"cannot connect to {address}:{error.port}: {describe_connect_error(error.os_error)}"


def convert_to_response_lost(error: Exception) -> ResponseLost:
    """Converts an error; the message omits the URL, because its query may name a person."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return ResponseLost(_describe_connector_error(error), is_connection_failure=True)
    # No connection failure: the proxy responds, and another connection would not help.
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ResponseLost(f"the proxy refuses to connect (status {error.status})")
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return ResponseLost("an answer that is not HTTP")
    if isinstance(error, aiohttp.ClientPayloadError):
        return ResponseLost("a truncated answer", is_connection_failure=True)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ResponseLost(
            "the connection was closed before an answer arrived", is_connection_failure=True
        )
    if isinstance(error, OSError) and error.errno:
        return ResponseLost(
            f"the connection failed: {os.strerror(error.errno).lower()}", is_connection_failure=True
        )
    return ResponseLost(
        type(error).__name__,
        is_connection_failure=isinstance(error, OSError | aiohttp.ClientConnectionError),
    )
