"""Responses to clients: short ones are written in one call, long ones in parts without copies.

Between two parts other requests are served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import cache
from http import HTTPStatus

from multidict import CIMultiDict

from gateway.http import progress
from gateway.http.header_block import encode_header_block
from gateway.http.request import HttpRequest

CHUNK_BYTES = 256 * 1024

_STATUSES_WITHOUT_BODY = (204, 304)


class HttpResponse:
    """A response whose body is complete. ``headers`` are without those about the connection.

    Raises ValueError when it is sent if a header contains a line break.
    """

    __slots__ = ("_parts", "body_length", "closes_connection", "headers", "is_sent", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        *parts: bytes,
        closes_connection: bool = False,
    ) -> None:
        self.status = status
        self.headers = headers
        self._parts = parts
        self.body_length = sum(map(len, parts))
        self.closes_connection = closes_connection
        self.is_sent = False

    async def send(self, request: HttpRequest) -> None:
        """Sends what has not been sent; raises ConnectionResetError."""
        if self.is_sent:
            return
        # Content-Length stays that of the body that GET would have (RFC 9110, section 9.3.2).
        head = self._start(request, str(self.body_length))
        connection, parts = request.connection, self._parts
        self.is_sent = True
        if request.method == "HEAD" or self.status in _STATUSES_WITHOUT_BODY:
            parts = ()
        if self.body_length <= CHUNK_BYTES:
            connection.write(b"".join([head, *parts]))
            await connection.drain()
        else:
            connection.write(head)
            await self._write_in_chunks(request, parts)

    async def _write_in_chunks(self, request: HttpRequest, parts: tuple[bytes, ...]) -> None:
        connection, sent_bytes = request.connection, 0
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                connection.write(chunk)
                # Waits for the client, so that the write buffer never holds a second copy of the
                # body.
                await connection.drain()
                await asyncio.sleep(0)  # lets other requests run while a fast client reads
                sent_bytes += len(chunk)
                progress.record_current_request_progress(
                    "sending_response", sent_bytes, self.body_length
                )

    def _start(self, request: HttpRequest, content_length: str | None, **framing: str) -> bytes:
        """Encodes the head, and decides whether the connection ends after this response."""
        if not request.is_keep_alive or request.connection.is_retiring:
            self.closes_connection = True
        connection_headers = framing
        if content_length is not None and self.status not in _STATUSES_WITHOUT_BODY:
            connection_headers["Content-Length"] = content_length
        if "Date" not in self.headers:
            connection_headers["Date"] = _format_date(int(time.time()))
        # Connection is needed only to deviate from the default of the HTTP version.
        if self.closes_connection is (request.version == "1.1"):
            connection_headers["Connection"] = "close" if self.closes_connection else "keep-alive"
        status_line = f"HTTP/{request.version} {self.status} {_find_reason_phrase(self.status)}"
        head = encode_header_block(status_line, self.headers, connection_headers)
        request.is_response_started = True
        return head


class StreamedResponse(HttpResponse):
    """A response whose body is written while it arrives; ``content_length`` is its declared length.

    Without one, and if its end ``is_detectable``, the body is chunked; else it ends with the
    connection.
    """

    __slots__ = ("_content_length", "_has_body", "_is_chunked", "_is_detectable", "_is_started")

    def __init__(
        self,
        status: int,
        headers: CIMultiDict[str],
        content_length: str | None,
        *,
        is_detectable: bool = True,
    ) -> None:
        super().__init__(status, headers, closes_connection=not is_detectable)
        self._content_length = content_length
        self._is_detectable = is_detectable
        self._is_started = self._is_chunked = False

    async def write(self, request: HttpRequest, part: bytes) -> None:
        """Writes a part, after the head; raises ConnectionResetError."""
        connection, data = request.connection, b"" if self._is_started else self._begin(request)
        if part and self._has_body:
            self.body_length += len(part)
            data += b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part
        if data:
            connection.write(data)
            await connection.drain()

    async def send(self, request: HttpRequest) -> None:
        if self.is_sent:
            return
        await self.write(request, b"")
        self.is_sent = True
        if self._is_chunked:
            request.connection.write(b"0\r\n\r\n")

    def _begin(self, request: HttpRequest) -> bytes:
        self._is_started = True
        self._has_body = request.method != "HEAD" and self.status not in _STATUSES_WITHOUT_BODY
        if self._content_length is not None or not self._has_body or not self._is_detectable:
            return self._start(request, self._content_length)
        if request.version == "1.1":
            self._is_chunked = True
            return self._start(request, None, **{"Transfer-Encoding": "chunked"})
        self.closes_connection = True
        return self._start(request, None)


@cache
def _find_reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


_date = (0, "")


def _format_date(second: int) -> str:
    global _date  # noqa: PLW0603 - formatted once a second
    if _date[0] != second:
        _date = second, formatdate(second, usegmt=True)
    return _date[1]
