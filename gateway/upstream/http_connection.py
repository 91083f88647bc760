"""A connection to a service: sends a request, and receives its response, one exchange at a time.

The head is parsed by httptools (llhttp). Anything unusual ends the connection: it carries calls of
several merchants, and rests of one exchange would be taken for the next response.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict

from gateway.http.responses import BODILESS_STATUSES
from gateway.payloads import json_codec
from gateway.upstream.clock import SkewSample


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

    async def verify_fence(self, stamped_at: float | None = None) -> None:
        """Confirms ownership; raises if another process owns the write.

        ``stamped_at`` is the Unix time with which the write is signed now, if the gateway signs it.
        """


MAX_HEAD_BYTES = 256 * 1024
"""Limit for the head of a response, with informational (1xx) responses and trailers."""

CLOSED_BEFORE_ANSWER = "the connection was closed before an answer arrived"


try:
    VERSION = version("payout-gateway")
except PackageNotFoundError:  # run from a checkout
    VERSION = "0"

USER_AGENT = f"payout-gateway/{VERSION}"


class Deadline(msgspec.Struct):
    """The end of a call, ``seconds`` after its start, at a time of the monotonic clock.

    Bytes that arrive at the rate ``bytes_per_second`` do not use up time, unless it is 0.
    """

    seconds: float
    ends_at: float
    bytes_per_second: int

    def extend(self, size: int) -> None:
        if self.bytes_per_second:
            self.seconds += size / self.bytes_per_second
            self.ends_at += size / self.bytes_per_second


class UpstreamConnection(asyncio.Protocol):
    """``on_lost`` is called once, when the connection has ended."""

    def __init__(self, on_lost: Callable[[UpstreamConnection], None]) -> None:
        self._on_lost = on_lost
        # Asking for it is a system call in Python 3.11.
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_encrypted = False
        self._parser = HttpResponseParser(self)
        # As aiohttp's client does: some services end lines in unusual ways.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._is_exchanging = self._has_headers = False
        self.is_complete = False
        """Whether the whole response has arrived."""
        self._can_keep_alive = False
        self._is_damaged = False
        """Whether something arrived that was not asked for: no other request may be sent."""
        self._error: ResponseLost | TimeoutError | None = None
        self._streamed_method = ""
        """The request's method, if the response is read while it arrives."""
        self._body_writer: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._unread_bytes = self._head_bytes = 0
        self._deadline: Deadline
        # One timer for many exchanges: it is moved when it fires, not for each of them.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.idle_since = 0.0
        self.status = 0
        self.header_lines: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, bytes] = {}
        """The header fields by name in lower case, undecoded: few are looked at."""

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent: nothing arrived, and the service has not closed it."""
        transport = self._transport
        return transport is not None and not (self._is_damaged or transport.is_closing())

    def check_usable(self) -> None:
        """Raises UnusableConnection, also if the connection was closed since it was acquired."""
        if not self.is_usable:
            raise UnusableConnection("no connection that can be used", is_connection_failure=True)

    # The exchange

    def start_exchange(self, data: bytes, deadline: Deadline) -> asyncio.Future[None]:
        """Sends the head of a request, and its body if that is short.

        Returns a future that ends when the response is complete, or when ``read_part`` has to take
        the first part of its body. It raises ResponseLost, and TimeoutError after the deadline.
        """
        transport = self._transport
        if transport is None:
            raise ResponseLost(CLOSED_BEFORE_ANSWER, is_connection_failure=True)
        self._is_exchanging, self.is_complete, self._has_headers = True, False, False
        self._parts, self._unread_bytes, self._head_bytes = [], 0, 0
        self._deadline = deadline
        if self._timer is None or deadline.ends_at < self._timer_at:
            self._start_timer()
        self.header_lines, self.fields = [], {}
        wakeup = self._wakeup = self._loop.create_future()
        transport.write(data)
        return wakeup

    def start_streamed_exchange(
        self, method: str, data: bytes, deadline: Deadline
    ) -> asyncio.Future[None]:
        """Like ``start_exchange``, but the future ends when the head of the response has arrived."""
        self._streamed_method = method
        return self.start_exchange(data, deadline)

    def write_body(self, parts: AsyncIterator[bytes | memoryview]) -> None:
        """Writes a long body in the background, because the answer may arrive before its end.

        Until it is written, the connection cannot be used again.
        """
        self._body_writer = asyncio.ensure_future(self._write_body(parts))

    async def _write_body(self, parts: AsyncIterator[bytes | memoryview]) -> None:
        try:
            async for part in parts:
                if self._transport is None:
                    return
                self._transport.write(part)
                if self._writable is not None:
                    await self._writable
                await asyncio.sleep(0)  # lets other requests run
            self._body_writer = None
        except Exception as error:  # noqa: BLE001 - the request stays incomplete, so nothing answers it
            self._error = ResponseLost(type(error).__name__)
            self._wake()

    def take_body(self) -> bytes:
        """Returns the body of a complete response."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_part(self) -> bytes:
        """Waits for the next part of the body; empty at its end.

        Raises ResponseLost, and TimeoutError if the deadline passes while it waits.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                return b""
            wakeup = self._wakeup = self._loop.create_future()
            if self._timer is None or self._deadline.ends_at < self._timer_at:
                self._start_timer()
            if self._transport is not None:
                self._transport.resume_reading()
            await wakeup
        self._unread_bytes = 0
        return self.take_body()

    async def read_long_body(self, max_bytes: int) -> bytes:
        """Reads a body that has not arrived yet; raises ResponseLost."""
        whole, declared = io.BytesIO(), int(self.fields.get(b"content-length", 0))
        while part := await self.read_part():
            whole.write(part)
            if max(whole.tell(), declared) > max_bytes:
                raise build_too_large_error(max_bytes)
        return whole.getvalue()

    def end_exchange(self) -> bool:
        """Ends a complete exchange; returns whether another request may follow."""
        self._is_exchanging, self._streamed_method = False, ""
        transport = self._transport
        return (
            self.is_complete
            and self._can_keep_alive
            and not self._is_damaged
            and self._body_writer is None
            and transport is not None
            and not transport.is_closing()
            # A service may answer before it has read all of a request.
            and not transport.get_write_buffer_size()
        )

    def close(self) -> None:
        """Closes without sending the rest of a request."""
        self._is_damaged = True
        if self._body_writer is not None:
            self._body_writer.cancel()
        if self._transport is None:
            return
        # A TLS connection would wait for the service's close_notify.
        if self._is_encrypted or self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No instance check: uvloop's transports are not subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        if not self._is_exchanging or self.is_complete:
            # For example a proxy's 408, which would be taken for the next response.
            self._is_damaged = True
            if not self._is_exchanging:
                self.close()
            return
        unread_bytes = self._unread_bytes
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:  # 101, which is final: another protocol would follow
            self.is_complete = self._is_damaged = True
        except HttpParserError:
            self._handle_unparsable_data()
        if self.is_complete or self._error is not None:
            self._wake()
            return
        received_bytes = self._unread_bytes - unread_bytes
        if received_bytes:
            self._deadline.extend(received_bytes)
        self._head_bytes += len(data) - received_bytes
        if self._unread_bytes > json_codec.LARGE_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._wake()
        elif not self._has_headers and self._head_bytes > MAX_HEAD_BYTES:
            self._error = ResponseLost("an answer that is not HTTP")
            self._wake()
        elif self._streamed_method and self._has_headers:
            self._wake()

    def _handle_unparsable_data(self) -> None:
        # The body of a status that has none was not asked for, as if it had come later.
        if self.is_complete and self.status in BODILESS_STATUSES:
            self._is_damaged = True
        else:
            self._error = ResponseLost("an answer that is not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_exchanging and not self.is_complete and self._error is None:
            ends_with_connection = (
                not {b"content-length", b"transfer-encoding"} & self.fields.keys()
            )
            if exc is None and self._has_headers and ends_with_connection:
                self.is_complete = True
            else:
                self._error = self._describe_loss(exc)
        self._wake()
        self.resume_writing()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _describe_loss(self, exc: Exception | None) -> ResponseLost:
        if self._has_headers:
            reason = "a truncated answer"
        elif isinstance(exc, OSError) and exc.errno:
            reason = f"the connection failed: {os.strerror(exc.errno).lower()}"
        else:
            reason = CLOSED_BEFORE_ANSWER
        return ResponseLost(reason, is_connection_failure=True)

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline.ends_at
        self._timer = self._loop.call_at(self._timer_at, self._end_late_exchange)

    def _end_late_exchange(self) -> None:
        self._timer = None
        # A response is not late while its reader does something else.
        if not self._is_exchanging or self.is_complete or self._wakeup is None:
            return
        if self._deadline.ends_at > self._timer_at:
            self._start_timer()
        elif self._error is None:
            self._error = TimeoutError()
            self._wake()

    def _wake(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        # It may have been cancelled by the deadline of the call.
        if wakeup is None or wakeup.done():
            return
        if self._error is not None:
            wakeup.set_exception(self._error)
        else:
            wakeup.set_result(None)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        if self.is_complete:  # a second response in the same packet
            self._is_damaged = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the head come only trailers, which are never headers, and unsolicited responses.
        if not self._has_headers:
            self.header_lines.append((name, value))
            self.fields[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        self.status, self._has_headers = self._parser.get_status_code(), True
        if self._streamed_method == "HEAD" and self.status >= 200:
            # The parser cannot be told that no body follows, and is not used again.
            self.is_complete = self._is_damaged = True

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self._parts.append(body)
            self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        # Informational responses precede the final one.
        if 100 <= self.status <= 199 and self.status != 101:
            self._has_headers, self.header_lines, self.fields = False, [], {}
        else:
            # Asked here, because the parser forgets it when the message has ended.
            self.is_complete, self._can_keep_alive = True, self._parser.should_keep_alive()


class Reply(msgspec.Struct):
    """A response of the service, with any status.

    ``body`` is decompressed. ``is_unreadable``: it is a success without JSON, so that something else
    than the service sent it. ``seconds`` is the duration of the call with all ``attempts``, the
    number of times it was sent.
    """

    status: int
    header_lines: Sequence[tuple[bytes, bytes]]
    body: bytes
    is_unreadable: bool = False
    seconds: float = 0.0
    attempts: int = 1
    skew_sample: SkewSample | None = None
    date: bytes = b""

    @property
    def headers(self) -> CIMultiDict[str]:
        return decode_header_lines(self.header_lines)


def decode_header_lines(lines: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    return CIMultiDict(
        [
            (name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
            for name, value in lines
        ]
    )


def build_too_large_error(max_bytes: int) -> ResponseLost:
    return ResponseLost(f"an answer of more than {max_bytes} bytes")
