"""A single attempt to send a request that its client has signed: it is sent at most once."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp
from aiohttp.http import HttpProcessingError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from aiohttp.connector import Connection


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


class SingleSend:
    """A client middleware that sends one request at most once.

    ``path`` must equal the target in the request line. ``has_left``: whether a byte of the request
    may have reached the service.
    """

    path: str
    fence: Fence | None
    has_left: bool

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        cast("SignedRequest", request).attempt = self
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as error:
            lost = convert_to_response_lost(error)
        # This error replaces aiohttp's own: after a dropped connection aiohttp would silently send
        # GET, PUT and DELETE again.
        raise lost

    async def sign_and_verify_fence(self, headers: MutableMapping[str, str]) -> None:
        """Adds the credentials once there is a connection; raises the errors of the fence."""
        if self.has_left:
            # A bug in aiohttp or here: failing is better than paying twice.
            raise RuntimeError("a request is sent once")
        await self._add_credentials(headers)
        # The process may be suspended at any point. A pause before the timestamp is made is
        # detected here; after a long pause later, the service refuses the timestamp.
        while self.fence and not self.fence.is_fence_recent:
            await self.fence.verify_fence()
            await self._add_credentials(headers)
        self.has_left = True

    async def _add_credentials(self, headers: MutableMapping[str, str]) -> None:
        """Adds the credentials to the headers, unless the client has signed the request."""


class SignedRequest(aiohttp.ClientRequest):
    """A request that is signed when it has a connection, so that waiting does not age it."""

    attempt: SingleSend

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # Data that arrived while it was idle (a proxy's 408) would be taken for the answer.
        if conn.protocol is None or conn.protocol.should_close or not conn.protocol.is_connected():
            # Checked before signing, so that the caller may use another connection even for a
            # write.
            raise UnusableConnection("no connection that can be used", is_connection_failure=True)
        # yarl may have normalized the target, and then the signature would not match.
        if self.url.raw_path_qs != self.attempt.path:
            raise ValueError("the target would not be sent as it was given")
        await self.attempt.sign_and_verify_fence(self.headers)
        return await super().send(conn)


def _describe_connect_error(error: aiohttp.ClientConnectorError) -> str:
    """Describes a connect error; aiohttp's own message mentions TLS also for plain HTTP."""
    address = f"[{error.host}]" if ":" in error.host else error.host
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        address = f"the proxy {address}"
    cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = f"{cause.verify_message} ({cause.reason})"
    elif isinstance(cause, ssl.SSLError | socket.gaierror) or not cause.errno:
        reason = cause.strerror or str(cause)
    else:
        reason = os.strerror(cause.errno).lower()
    return f"cannot connect to {address}:{error.port}: {reason}"


def convert_to_response_lost(error: Exception) -> ResponseLost:
    """Converts an error; the message omits the URL, because its query may name a person."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return ResponseLost(_describe_connect_error(error), is_connection_failure=True)
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
