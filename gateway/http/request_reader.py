"""Reads a client's HTTP request: target, query and body, within limits."""

from __future__ import annotations

import asyncio
import codecs
import io
import re
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from aiohttp import web

from gateway.admission.load import AdmissionSlot, RequestConnection
from gateway.http import progress
from gateway.http.decompression import NotInflated, TooLarge, decompress_body
from gateway.http.request_ids import token
from gateway.http.timeouts import Timeout
from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread_if
from mappings.errors import TOO_LARGE, ErrorAnswer
from mappings.grammar import JSON, Invalid, Problem

TOO_SLOW: web.RequestKey[bool] = web.RequestKey("too_slow", bool)
"""Set if the body did not arrive in time: the connection does not wait for the rest."""

DESERTED: web.RequestKey[Callable[[bool], None]] = web.RequestKey("deserted", None)
"""Called if the connection ends before the request does, with whether the client has acknowledged
everything that was sent to it."""

IS_LAST: web.RequestKey[Callable[[], bool]] = web.RequestKey("is_last", None)
"""Whether a response sent now is the last on its connection, and needs ``Connection: close``."""

CONNECTION: web.RequestKey[ClientConnection] = web.RequestKey("connection", None)
"""The connection that a request came on."""

ARRIVED_AT: web.RequestKey[float] = web.RequestKey("arrived_at", float)
"""When the request came, by the loop's clock; earlier than it was read if the process was stopped."""

RESET: web.RequestKey[Callable[[], None]] = web.RequestKey("reset", None)
"""Called if the connection is reset after the response was acknowledged."""

BENEATH: web.RequestKey[asyncio.Transport] = web.RequestKey("beneath", asyncio.Transport)
"""The TCP transport below TLS."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientConnection(RequestConnection, Protocol):
    def authenticate(self, tenant: Hashable) -> None:
        """The client has proven whose request it is: until then it is one of its address."""


class Overlong(Exception):
    """A body over the limit. The rest is not read, so the connection must be closed."""

    answer = ErrorAnswer(413, (TOO_LARGE,))


def has_body(request: web.BaseRequest) -> bool:
    return "Transfer-Encoding" in request.headers or bool(request.content_length)


def is_read_with_body(request: web.BaseRequest) -> bool:
    """Whether it is a GET or HEAD with a body: never forwarded, nor parsed as another request."""
    return request.method in ("GET", "HEAD") and has_body(request)


def ends_connection(request: web.BaseRequest) -> bool:
    """Whether the connection must be closed after this request.

    aiohttp's parser (3.14.5) prepends the last trailer field of a chunked body to the headers of
    the next request, and an unexpected body may be a smuggled request.
    """
    return "Transfer-Encoding" in request.headers or is_read_with_body(request)


def mark_authenticated(request: web.BaseRequest, tenant: Hashable) -> None:
    if connection := request.get(CONNECTION):
        connection.authenticate(tenant)


def split_request_target(request: web.BaseRequest) -> tuple[str, str]:
    """Splits the raw target into path and query, without decoding; drops scheme and host."""
    target = request.raw_path
    # The absolute form (RFC 9112, section 3.2.2).
    if target[:1] != "/":
        target = re.sub(r"^https?://[^/?#]*", "", target, flags=re.IGNORECASE)
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def parse_query(query: str) -> dict[str, str]:
    """Parses the query parameters that are not blank; the first of a repeated one counts."""
    if not query:
        return {}
    pairs = parse_qsl(query, keep_blank_values=False, errors="replace")
    # Reversed, so that the first of a repeated parameter overwrites the others.
    return {name: value for name, value in reversed(pairs) if value.strip()}


def resolve_request_id(request: web.BaseRequest) -> str:
    """Returns the client's ``X-Request-Id``, or a new id.

    The id is logged, so one that contains the client's credentials is replaced.
    """
    given = request.headers.get("X-Request-Id", "")
    if not given:
        return token()
    keys = [line.strip() for line in request.headers.getall("X-API-Key", ())]
    for line in request.headers.getall("Authorization", ()):
        keys += re.split(r"[:\s]+", line.strip())[1:]
    # The pattern also keeps line breaks out of logs and headers.
    if any(key and key in given for key in keys) or not _REQUEST_ID.fullmatch(given):
        return token()
    return given


def check_content_length(request: web.BaseRequest, most: int) -> None:
    """Raises BodyTooLarge if the declared length exceeds the limit, before the body is read."""
    if (request.content_length or 0) > most:
        raise Overlong


async def read_whole_body(
    request: web.BaseRequest, most: int, stay: AdmissionSlot, pace: Pace
) -> bytes:
    """Reads the raw body; raises BodyTooLarge, and Invalid if it is incomplete.

    Reserves the memory in ``slot``, which raises if there is not enough.
    """
    body = io.BytesIO()
    async for part in iter_body_chunks(request, most, stay, pace):
        body.write(part)
    return body.getvalue()


def transcode_to_utf8(body: bytes, declared: str | None, undeclared: str) -> bytes:
    """Transcodes a JSON text to UTF-8; raises Invalid if the charset is not supported.

    JSON is UTF-8 (RFC 8259), but existing clients also send Latin-1 (contract, section 2). Text
    without a declared charset that is valid UTF-8 is taken as UTF-8.
    """
    if body.isascii():
        return body
    charset = declared or undeclared
    if declared is None:
        with suppress(UnicodeDecodeError):
            body.decode()
            return body
    try:
        name = codecs.lookup(charset).name
    except LookupError:
        name = ""
    if name == "iso8859-1":
        return body.decode("latin-1").encode()
    if name == "utf-8":
        return body
    raise Invalid(Problem("invalid_field", "The body must be in UTF-8, or in ISO-8859-1."))


async def decode_json_body(
    body: bytes, encoding: str, charsets: tuple[str | None, str], most: int, stay: AdmissionSlot
) -> JSON:
    """Decodes a JSON body; raises Invalid if it is not JSON, BodyTooLarge if it is too large.

    ``charsets`` are the declared charset and the default. The limits hold for the decompressed
    text and for the memory of its values.
    """
    try:
        plain = await decompress_body(body, encoding, most, stay.hold)
        plain = await run_in_thread_if(
            len(plain) > json_codec.LARGE, transcode_to_utf8, plain, *charsets
        )
        cost = await run_in_thread_if(
            len(plain) > json_codec.LARGE, json_codec.estimate_memory_bytes, plain
        )
        # Estimated before parsing: a small text of nested values can need many times its size.
        if len(plain) + cost <= stay.most_bytes:
            stay.hold(cost)
            return await run_in_thread_if(
                len(plain) > json_codec.LARGE, json_codec.read, plain, json_codec.LONG
            )
    except json_codec.Unreadable as unreadable:
        message = f"The body must be a JSON object: {unreadable}."
        raise Invalid(Problem("invalid_field", message)) from None
    except NotInflated:
        raise Invalid(NOT_WHOLE) from None
    except TooLarge:
        raise Overlong from None
    raise Overlong


NOT_WHOLE = Problem("invalid_field", "The body is not what its headers say, or was cut off.")
NOT_IN_TIME = Problem("invalid_field", "The body did not arrive in time.")


@dataclass(frozen=True, slots=True)
class Pace:
    """The minimum rate of a body: something within each ``seconds``, and after the first
    ``seconds``, ``bytes_per_second`` on average (0 is no minimum).
    """

    seconds: float
    bytes_per_second: int

    def patience(self, elapsed: float, size: int) -> float:
        """Returns the seconds that the next chunk may take; 0 or less if it is already late."""
        if not self.bytes_per_second:
            return self.seconds
        # Otherwise a client could hold a slot for hours with one byte at a time.
        due = self.seconds + size / self.bytes_per_second
        return min(self.seconds, due - elapsed)


async def iter_body_chunks(
    request: web.BaseRequest, most: int, stay: AdmissionSlot, pace: Pace
) -> AsyncIterator[bytes]:
    """Yields the raw body while it arrives; raises BodyTooLarge, and Invalid if it is incomplete."""
    held = request.content_length or 0
    # The declared length is reserved at once, so that concurrent uploads cannot exceed the memory.
    stay.hold(held)
    if request.headers.get("Expect", "").lower() == "100-continue":
        # Sent here and not earlier, so that a refused client does not send its body.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Otherwise aiohttp takes the final response for one that has already started.
        request.writer.output_size = 0
    loop = asyncio.get_running_loop()
    began, size = loop.time(), 0
    while part := await _part(request, pace.patience(loop.time() - began, size)):
        size += len(part)
        if size > most:
            raise Overlong
        # Without a declared length (chunked), memory is reserved as the body arrives.
        if size > held:
            stay.hold(size - held)
            held = size
        if held > json_codec.LARGE:
            progress.told("receiving_request", size, request.content_length or 0)
        yield part


async def _part(request: web.BaseRequest, seconds: float) -> bytes:
    try:
        with Timeout(seconds):
            return await request.content.readany()
    except TimeoutError:
        request[TOO_SLOW] = True
        raise Invalid(NOT_IN_TIME) from None
    except (web.RequestPayloadError, ConnectionError, RuntimeError):
        # A RuntimeError is aiohttp's if the connection was closed before.
        raise Invalid(NOT_WHOLE) from None
