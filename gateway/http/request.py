"""A client's HTTP request: its head, and its body while it arrives."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.admission.load import TrackedConnection


class ClientConnection(TrackedConnection):
    """The connection on which a request arrived, as its handler uses it."""

    transport: asyncio.Transport | None
    """None once the connection is lost."""

    tcp_transport: asyncio.Transport
    """The transport itself, or the one below TLS."""

    is_retiring: bool
    """Whether the next response is the last: the server stops."""

    is_writing_paused: bool
    """Whether the client has much to read, so that a response waits."""

    @abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Writes without waiting; raises ConnectionResetError if the client has disconnected."""

    @abstractmethod
    async def drain(self) -> None:
        """Waits until the client has read most of what was written.

        Raises ConnectionResetError.
        """


class BodyIncomplete(Exception):
    """The rest of a body is malformed, or does not arrive."""


class RequestBody:
    """A body that arrives in parts; the connection stops reading while many bytes are unread."""

    __slots__ = (
        "_has_failed",
        "_on_read",
        "_parts",
        "_waiter",
        "content_length",
        "is_complete",
        "unread_bytes",
    )

    def __init__(
        self,
        on_read: Callable[[], None] | None = None,
        content_length: int | None = None,
        data: bytes = b"",
    ) -> None:
        """Creates a body that arrives; without ``on_read``, one that has arrived as ``data``."""
        self._parts: deque[bytes] = deque((data,) if data else ())
        self._on_read = on_read
        self.content_length = content_length
        self._waiter: asyncio.Future[None] | None = None
        self._has_failed = False
        self.unread_bytes = len(data)
        self.is_complete = on_read is None
        """Whether the whole body has arrived, read or not."""

    def feed(self, data: bytes) -> None:
        self._parts.append(data)
        self.unread_bytes += len(data)
        self._wake_reader()

    def feed_end(self) -> None:
        self.is_complete = True
        self._wake_reader()

    def fail(self) -> None:
        """Makes reads fail, because the rest is malformed or does not arrive."""
        self._has_failed = True
        self._wake_reader()

    async def read_available(self) -> bytes:
        """Returns what has arrived, after waiting for the first byte; empty at the end.

        Raises BodyIncomplete.
        """
        while not (self._parts or self.is_complete or self._has_failed):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take_available()

    def take_available(self) -> bytes:
        """Like ``read_available``, but does not wait: empty if nothing has arrived."""
        if self._has_failed:
            raise BodyIncomplete
        data = b"".join(self._parts)
        self._parts.clear()
        self.unread_bytes = 0
        if self._on_read is not None:
            self._on_read()
        return data

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


NO_BODY = RequestBody()
NO_CONNECTION = cast("ClientConnection", None)
"""Before the connection serves a request."""


class HeaderFields:
    """The header fields of a request, decoded as UTF-8 with surrogates.

    Requests on one connection share them if they are the same.
    """

    __slots__ = ("client", "content_length", "has_body", "headers")

    def __init__(self, headers: CIMultiDict[str]) -> None:
        self.headers = CIMultiDictProxy(headers)
        length = headers.get("Content-Length")
        self.content_length = int(length) if length is not None else None
        self.has_body = bool(self.content_length) or "Transfer-Encoding" in headers
        self.client: Any = None
        """What the handler derived from them: the client's address and credentials."""

    def copy_with_length(self, content_length: str) -> HeaderFields:
        """Returns the same fields of a request with another body."""
        if self.content_length == int(content_length):
            return self
        headers = self.headers.copy()
        headers["Content-Length"] = content_length
        fields = HeaderFields(headers)
        fields.client = self.client
        return fields


class HttpRequest(msgspec.Struct, eq=False):
    """A request whose head is complete; ``raw_path`` is the target as the client sent it."""

    method: str
    raw_path: str
    fields: HeaderFields
    version: str = "1.1"
    is_keep_alive: bool = True
    """Whether another request may follow on the connection."""
    body: RequestBody = NO_BODY
    connection: ClientConnection = NO_CONNECTION
    remote: str | None = None
    """The peer's IP address; None for a Unix socket."""
    arrived_at: float = 0.0
    """Arrival by the monotonic clock; of a write, before it was read if the process was busy."""
    on_disconnect: Callable[[bool], None] | None = None
    """Called if the connection ends before the request does, with whether the client has
    acknowledged everything that was sent to it."""
    on_reset: Callable[[], None] | None = None
    """Called if the connection is reset while the response is sent, or soon after."""
    has_body_timed_out: bool = False
    """The body did not arrive in time: the connection does not wait for the rest."""
    is_response_started: bool = False

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        return self.fields.headers

    @property
    def transport(self) -> asyncio.Transport | None:
        return self.connection.transport

    @property
    def is_read_with_body(self) -> bool:
        """Whether it is a GET or HEAD with a body: never forwarded, nor parsed as another request."""
        return self.method in ("GET", "HEAD") and self.fields.has_body
