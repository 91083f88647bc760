"""What is read of a client's HTTP request: its target, its query, its body, within bounds."""

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
"""Set where a body did not come in time: nobody waits for the rest of it."""

DESERTED: web.RequestKey[Callable[[bool], None]] = web.RequestKey("deserted", None)
"""What of a request is to be called when its connection ends before it is over, with whether the
client has acknowledged all that was sent to it."""

IS_LAST: web.RequestKey[Callable[[], bool]] = web.RequestKey("is_last", None)
"""Whether an answer that is sent now is its connection's last, and has to say so."""

CONNECTION: web.RequestKey[ClientConnection] = web.RequestKey("connection", None)
"""The connection that a request came on."""

ARRIVED_AT: web.RequestKey[float] = web.RequestKey("arrived_at", float)
"""When the request came, by the loop's clock; earlier than it was read if the process was stopped."""

RESET: web.RequestKey[Callable[[], None]] = web.RequestKey("reset", None)
"""What of a request is to be called if its connection is reset after its response was acknowledged."""

BENEATH: web.RequestKey[asyncio.Transport] = web.RequestKey("beneath", asyncio.Transport)
"""The plain connection under one that speaks TLS."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientConnection(RequestConnection, Protocol):
    def authenticate(self, tenant: Hashable) -> None:
        """The client has proven whose request it is: until then it is one of its address."""


class Overlong(Exception):
    """A body over the limit; the rest of it is not read."""

    answer = ErrorAnswer(413, (TOO_LARGE,))


def has_body(request: web.BaseRequest) -> bool:
    return "Transfer-Encoding" in request.headers or bool(request.content_length)


def is_read_with_body(request: web.BaseRequest) -> bool:
    """Whether it is a GET or HEAD with a body: that is never sent on, and never a request of its own."""
    return request.method in ("GET", "HEAD") and has_body(request)


def ends_connection(request: web.BaseRequest) -> bool:
    """Whether nothing may follow this request on its connection.

    aiohttp's parser puts the last trailer field of a chunked body in front of the headers of the next
    request (3.14.5), and a body that nobody expects may be a request in disguise.
    """
    return "Transfer-Encoding" in request.headers or is_read_with_body(request)


def mark_authenticated(request: web.BaseRequest, tenant: Hashable) -> None:
    if connection := request.get(CONNECTION):
        connection.authenticate(tenant)


def split_request_target(request: web.BaseRequest) -> tuple[str, str]:
    """The request target as it was sent, nothing decoded; of an absolute one, what follows the host."""
    target = request.raw_path
    if target[:1] != "/":
        target = re.sub(r"^https?://[^/?#]*", "", target, flags=re.IGNORECASE)
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def parse_query(query: str) -> dict[str, str]:
    """The query parameters that say something; of one given twice, the first."""
    if not query:
        return {}
    pairs = parse_qsl(query, keep_blank_values=False, errors="replace")
    return {name: value for name, value in reversed(pairs) if value.strip()}


def resolve_request_id(request: web.BaseRequest) -> str:
    """The client's ``X-Request-Id``, or one made here; it is logged, so never one with its credentials."""
    given = request.headers.get("X-Request-Id", "")
    if not given:
        return token()
    keys = [line.strip() for line in request.headers.getall("X-API-Key", ())]
    for line in request.headers.getall("Authorization", ()):
        keys += re.split(r"[:\s]+", line.strip())[1:]
    if any(key and key in given for key in keys) or not _REQUEST_ID.fullmatch(given):
        return token()
    return given


def check_content_length(request: web.BaseRequest, most: int) -> None:
    """Raises Overlong by the length that is declared, before any of it is read."""
    if (request.content_length or 0) > most:
        raise Overlong


async def read_whole_body(
    request: web.BaseRequest, most: int, stay: AdmissionSlot, pace: Pace
) -> bytes:
    """The body as it came, nothing decoded; Overlong, and Invalid where it is not whole.

    Its bytes are held in ``stay``, which raises where there is no room for them.
    """
    body = io.BytesIO()
    async for part in iter_body_chunks(request, most, stay, pace):
        body.write(part)
    return body.getvalue()


def transcode_to_utf8(body: bytes, declared: str | None, undeclared: str) -> bytes:
    """A JSON text in UTF-8, of a text in a charset; raises Invalid for one that cannot be read.

    JSON is UTF-8 (RFC 8259); clients in the field send Latin-1, too (contract, section 2). Text that
    declares no charset and is valid UTF-8 is hardly ever anything else.
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
    """A body as values; raises Invalid where it is no JSON, Overlong where it is too large.

    ``charsets`` are the one that it declares, and that of bodies that declare none.
    """
    try:
        plain = await decompress_body(body, encoding, most, stay.hold)
        plain = await run_in_thread_if(
            len(plain) > json_codec.LARGE, transcode_to_utf8, plain, *charsets
        )
        cost = await run_in_thread_if(
            len(plain) > json_codec.LARGE, json_codec.estimate_memory_bytes, plain
        )
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
    """How fast a body has to come: something in every ``seconds``, and after the first of them
    never less in all than ``bytes_per_second`` makes.
    """

    seconds: float
    bytes_per_second: int

    def patience(self, elapsed: float, size: int) -> float:
        """Seconds that the next part may take; none or less where it is too late already."""
        if not self.bytes_per_second:
            return self.seconds
        due = self.seconds + size / self.bytes_per_second
        return min(self.seconds, due - elapsed)


async def iter_body_chunks(
    request: web.BaseRequest, most: int, stay: AdmissionSlot, pace: Pace
) -> AsyncIterator[bytes]:
    """The body as it comes, nothing decoded; raises Overlong, and Invalid where it is not whole."""
    held = request.content_length or 0
    stay.hold(held)
    if request.headers.get("Expect", "").lower() == "100-continue":
        # Only now: whoever has no key, or is over the limit, need not send the body.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # so that the answer itself still counts as not begun
    loop = asyncio.get_running_loop()
    began, size = loop.time(), 0
    while part := await _part(request, pace.patience(loop.time() - began, size)):
        size += len(part)
        if size > most:
            raise Overlong
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
