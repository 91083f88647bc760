"""Responses to clients, and those of the legacy interface: compact JSON that begins with ``ok``.

Short bodies are written in one call, long ones in parts without copies; between two parts other
requests are served.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from email.utils import formatdate
from http import HTTPStatus

import msgspec
from multidict import CIMultiDict

from gateway.admission.limits import Admission
from gateway.http.request import HttpRequest
from gateway.payloads import json_codec
from mappings.errors import ErrorAnswer

SERVER = "payout-gateway"

NO_HEADERS: Mapping[str, str] = {}

_COMMON_HEADERS = f"Access-Control-Allow-Origin: *\r\nServer: {SERVER}\r\n"
"""The headers of every response of the gateway itself."""
_JSON_TYPE = "Content-Type: application/json; charset=utf-8\r\n"

PREFLIGHT_SECONDS = 86_400
"""How long a browser may cache a preflight response."""


CHUNK_BYTES = 256 * 1024

BODILESS_STATUSES = (204, 304)


class HttpResponse:
    """A response whose body is complete. ``headers`` are without those about the connection.

    Raises ValueError when it is sent if a header contains a line break. ``header_lines`` are
    further headers, encoded and known to contain none.
    """

    __slots__ = (
        "_header_lines",
        "_parts",
        "body_length",
        "closes_connection",
        "headers",
        "is_sent",
        "status",
    )

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        *parts: bytes,
        closes_connection: bool = False,
        header_lines: str = "",
    ) -> None:
        self.status = status
        self.headers = headers
        self._header_lines = header_lines
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
        if request.method == "HEAD" or self.status in BODILESS_STATUSES:
            parts = ()
        if self.body_length <= CHUNK_BYTES:
            connection.write(b"".join([head, *parts]))
            if connection.is_writing_paused:
                await connection.drain()
        else:
            connection.write(head)
            connection.response_bytes = self.body_length
            await self._write_in_chunks(request, parts)
            connection.response_bytes = 0

    async def _write_in_chunks(self, request: HttpRequest, parts: tuple[bytes, ...]) -> None:
        connection = request.connection
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), CHUNK_BYTES):
                chunk = view[start : start + CHUNK_BYTES]
                connection.write(chunk)
                # Waits for the client, so that the write buffer never holds a second copy of the
                # body.
                await connection.drain()
                connection.mark_response_in_progress()
                await asyncio.sleep(0)  # lets other requests run while a fast client reads

    def _start(
        self, request: HttpRequest, content_length: str | None, framing_line: str = ""
    ) -> bytes:
        """Encodes the head, and decides whether the connection ends after this response."""
        version, status, headers = request.version, self.status, self.headers
        if not request.is_keep_alive or request.connection.is_retiring:
            self.closes_connection = True
        if content_length is not None and status not in BODILESS_STATUSES:
            framing_line += f"Content-Length: {content_length}\r\n"
        if headers:
            framing_line += encode_header_fields(headers.items())
        # Connection is needed only to deviate from the default of the HTTP version.
        if self.closes_connection is (version == "1.1"):
            value = "close" if self.closes_connection else "keep-alive"
            framing_line += f"Connection: {value}\r\n"
        second, date_line = _date_line
        if second != (now := int(time.time())):
            date_line = _update_date_line(now)
        if headers and "Date" in headers:
            date_line = ""
        status_line = _STATUS_LINES.get((version, status)) or f"HTTP/{version} {status} \r\n"
        request.is_response_started = True
        return f"{status_line}{self._header_lines}{framing_line}{date_line}\r\n".encode()


def encode_header_fields(fields: Collection[tuple[str, str]]) -> str:
    """Raises ValueError if a line break in a value would inject another header."""
    text = "".join(f"{name}: {value}\r\n" for name, value in fields)
    # Counting line ends in the result finds an injected one in any name or value.
    if text.count("\r") != len(fields) or text.count("\n") != len(fields) or "\0" in text:
        raise ValueError("a header would be more than one")
    return text


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
        self._has_body = request.method != "HEAD" and self.status not in BODILESS_STATUSES
        if self._content_length is not None or not self._has_body or not self._is_detectable:
            return self._start(request, self._content_length)
        if request.version == "1.1":
            self._is_chunked = True
            return self._start(request, None, "Transfer-Encoding: chunked\r\n")
        self.closes_connection = True
        return self._start(request, None)


_date_line: tuple[int, str] = (0, "")
"""The second of the last response, and the header of all responses in that second."""


def _update_date_line(second: int) -> str:
    global _date_line  # noqa: PLW0603 - one clock a process
    _date_line = second, f"Date: {formatdate(second, usegmt=True)}\r\n"
    return _date_line[1]


_STATUS_LINES = {
    (version, status.value): f"HTTP/{version} {status.value} {status.phrase}\r\n"
    for version in ("1.0", "1.1")
    for status in HTTPStatus
}


class LegacyResponse(msgspec.Struct, frozen=True):
    """A response to a legacy client: status, encoded body (``ok`` first) and specific headers."""

    status: int
    chunks: Sequence[bytes]
    headers: Mapping[str, str] = {}
    closes_connection: bool = False

    def __repr__(self) -> str:
        return f"LegacyResponse({self.status})"  # the body may hold personal data

    @property
    def body_bytes(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def is_long(self) -> bool:
        return sum(map(len, self.chunks)) > json_codec.LARGE_BYTES


class PassedResponse(msgspec.Struct, frozen=True):
    """The legacy service's response to a forwarded request."""

    status: int
    headers: CIMultiDict[str]
    body: bytes

    def __repr__(self) -> str:
        return f"PassedResponse({self.status})"


def build_error_response(answer: ErrorAnswer, *, closes_connection: bool = False) -> LegacyResponse:
    headers = {} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)}
    chunks = [json_codec.dumps_trusted(answer.build_body())]
    return LegacyResponse(answer.status, chunks, headers, closes_connection)


def build_preflight_response(
    methods: Iterable[str], headers: Iterable[str] = ("X-API-Key", "Content-Type")
) -> LegacyResponse:
    """Builds the response to a CORS preflight: any origin, and the methods of the path."""
    return LegacyResponse(
        200,
        [b'{"ok":true}'],
        {
            "Access-Control-Allow-Methods": ", ".join([*methods, "OPTIONS"]),
            "Access-Control-Allow-Headers": ", ".join(headers),
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        },
    )


def build_http_response(
    legacy_response: LegacyResponse,
    request_id: str,
    admission: Admission | None = None,
    deprecation_headers: Mapping[str, str] = NO_HEADERS,
) -> HttpResponse:
    """Builds the HTTP response, with the headers that every response has.

    ``request_id`` has been checked, and contains no line break.
    """
    headers, own_headers = deprecation_headers, legacy_response.headers
    # A replayed response of the legacy service has its own.
    type_line = "" if "Content-Type" in own_headers else _JSON_TYPE
    header_lines = f"{type_line}{_COMMON_HEADERS}X-Request-Id: {request_id}\r\n"
    if admission is not None:
        header_lines += (
            f"RateLimit-Limit: {admission.limit}\r\nRateLimit-Remaining: {admission.remaining}\r\n"
            f"RateLimit-Reset: {admission.reset_seconds}\r\n"
        )
    return HttpResponse(
        legacy_response.status,
        {**headers, **own_headers} if own_headers else headers,
        *legacy_response.chunks,
        closes_connection=legacy_response.closes_connection,
        header_lines=header_lines,
    )


def build_passthrough_response(
    passed_response: PassedResponse,
    request_id: str,
    admission: Admission | None = None,
    own_headers: Mapping[str, str] = NO_HEADERS,
) -> HttpResponse:
    """Builds the HTTP response from a forwarded one, with the headers that every response has.

    ``own_headers`` replace the service's: two deprecation dates would be ambiguous.
    ``Link`` is a list, so the service's links stay.
    """
    # A copy, because shadow traffic still compares the original.
    headers = passed_response.headers.copy()
    add_common_headers(headers, admission)
    headers["X-Request-Id"] = request_id
    for name, value in own_headers.items():
        if name == "Link":
            headers.add(name, value)
        else:
            headers[name] = value
    return HttpResponse(passed_response.status, headers, passed_response.body)


def add_common_headers(headers: CIMultiDict[str], admission: Admission | None) -> None:
    """Adds the headers that every response has to those of a service."""
    # Both count the same client, so the service's rate limit would contradict the gateway's.
    if admission and not any(name.lower().startswith("ratelimit") for name in headers):
        headers["RateLimit-Limit"] = str(admission.limit)
        headers["RateLimit-Remaining"] = str(admission.remaining)
        headers["RateLimit-Reset"] = str(admission.reset_seconds)
    headers.setdefault("Access-Control-Allow-Origin", "*")
    headers["Server"] = SERVER
