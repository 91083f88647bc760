"""Response bodies: short ones are written in one call, long ones in chunks without copies.

Between two chunks other requests are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.payload import Payload

from gateway.http import progress
from gateway.http.header_block import encode_header_block

CHUNK_BYTES = 256 * 1024


class CompleteResponse(web.StreamResponse):
    """A response whose body is complete, written in one call at half the cost of ``web.Response``.

    Content-Length, Date and Connection are added to ``headers``. Raises ValueError when it is sent
    if a header contains a line break.
    """

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(status=status)
        self._data = body
        self._fields = headers
        self._is_last = False
        self._is_sent = False

    @property
    def prepared(self) -> bool:
        return self._is_sent

    @property
    def body_length(self) -> int:
        return len(self._data)

    @property
    def keep_alive(self) -> bool:
        return not self._is_last

    def force_close(self) -> None:
        self._is_last = True

    async def prepare(self, request: web.BaseRequest) -> None:
        if self._is_sent:
            return
        self._is_last = self._is_last or not request.keep_alive
        head = self._encode_head(request)
        writer, transport = request.writer, request.transport
        # A closed transport drops writes silently, and the response would count as sent.
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        # Content-Length stays that of the body that GET would have (RFC 9110, section 9.3.2).
        message = head if request.method == "HEAD" else head + self._data
        self._is_sent = True
        writer.output_size += len(message)
        transport.write(message)
        await writer.drain()

    async def write_eof(self, _data: bytes = b"") -> None:
        """Does nothing, because ``prepare`` has written the body too."""

    def _encode_head(self, request: web.BaseRequest) -> bytes:
        version = request.version
        connection_headers = {
            "Content-Length": str(len(self._data)),
            "Date": rfc822_formatted_time(),
        }
        # Connection is needed only to deviate from the default of the HTTP version.
        if self._is_last is (version == HttpVersion11):
            connection_headers["Connection"] = "close" if self._is_last else "keep-alive"
        status_line = (
            f"HTTP/{version[0]}.{version[1]} {self.status} {_find_reason_phrase(self.status)}"
        )
        return encode_header_block(status_line, self._fields, connection_headers)


@cache
def _find_reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


class BufferedPayload(Payload):
    """A body in memory; its chunks are written as fast as the client takes them."""

    _autoclose = True

    def __init__(self, *parts: bytes) -> None:
        super().__init__(parts, content_type="application/json")
        self._size = sum(map(len, parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        sent_bytes, total_bytes = 0, sum(map(len, self._value))
        for buffer in self._value:
            view = memoryview(buffer)
            for start in range(0, len(view), CHUNK_BYTES):
                # Waits for the client, so that the write buffer never holds a second copy of the
                # body.
                await writer.write(view[start : start + CHUNK_BYTES])
                await asyncio.sleep(0)  # lets other requests run while a fast client reads
                sent_bytes += len(view[start : start + CHUNK_BYTES])
                if total_bytes > CHUNK_BYTES:
                    progress.record_current_request_progress(
                        "sending_response", sent_bytes, total_bytes
                    )
