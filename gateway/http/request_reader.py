"""Reads a client's HTTP request: target, query and body, within limits."""

import asyncio
import codecs
import io
import math
import os
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from email.message import Message
from urllib.parse import parse_qsl

from gateway.admission.load import AdmissionSlot
from gateway.http.request import BodyIncomplete, HttpRequest
from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from mappings.effects import JSON
from mappings.errors import BODY_TOO_LARGE, ErrorAnswer
from mappings.failures import Invalid, Problem

_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")


ID_BYTES = 12
"""Random bytes in an id."""

IDS_PER_READ = 256
"""Ids per read of random bytes: the system call costs more than formatting an id."""

_supply: list[str] = []


def generate_hex_id() -> str:
    if not _supply:
        # Random bytes of the operating system differ between processes and hosts without a shared
        # counter.
        _supply.extend(os.urandom(ID_BYTES * IDS_PER_READ).hex(" ", ID_BYTES).split())
    return _supply.pop()


# A forked process would otherwise generate the same ids.
os.register_at_fork(after_in_child=_supply.clear)


class BodyTooLarge(Exception):
    """A body over the limit. The rest is not read, so the connection must be closed."""

    answer = ErrorAnswer(413, (BODY_TOO_LARGE,))


def split_request_target(request: HttpRequest) -> tuple[str, str]:
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
    # A client may send a malformed escape; the legacy lists refuse no parameter.
    pairs = parse_qsl(query, keep_blank_values=False, errors="replace")
    # Reversed, so that the first of a repeated parameter overwrites the others.
    return {name: value for name, value in reversed(pairs) if value.strip()}


def find_client_request_id(request: HttpRequest) -> str:
    """Returns the client's ``X-Request-Id``; empty if there is none, or none to be logged.

    The id is logged, so one that contains the client's credentials is replaced.
    """
    client_id = request.fields.headers.get("X-Request-Id", "")
    if not client_id:
        return ""
    keys = [line.strip() for line in request.fields.headers.getall("X-API-Key", ())]
    for line in request.fields.headers.getall("Authorization", ()):
        # The parts after the scheme: the access key and the signature.
        keys += re.split(r"[:\s]+", line.strip())[1:]
    # The pattern also keeps line breaks out of logs and headers.
    has_key = any(key and key in client_id for key in keys)
    if has_key or not _REQUEST_ID_PATTERN.fullmatch(client_id):
        return ""
    return client_id


def check_content_length(request: HttpRequest, max_bytes: int) -> None:
    """Raises BodyTooLarge if the declared length exceeds the limit, before the body is read."""
    if (request.fields.content_length or 0) > max_bytes:
        raise BodyTooLarge


async def read_whole_body(
    request: HttpRequest, max_bytes: int, slot: AdmissionSlot, bytes_per_second: int
) -> bytes:
    """Reads the raw body; raises BodyTooLarge, and Invalid if it is incomplete.

    Reserves the memory in ``slot``, which raises if there is not enough.
    """
    arrived = request.body
    # Nearly all have arrived with their heads.
    if (
        arrived.is_complete
        and arrived.unread_bytes <= min(max_bytes, json_codec.LARGE_BYTES)
        and "Expect" not in request.fields.headers
    ):
        slot.reserve_bytes(arrived.unread_bytes)
        return arrived.take_available()
    body = io.BytesIO()
    async for part in iter_body_chunks(request, max_bytes, slot, bytes_per_second):
        # ``BytesIO`` returns its buffer without a copy; joining a list of parts would need one.
        body.write(part)
    return body.getvalue()


def transcode_to_utf8(body: bytes, content_type: str, default_charset: str) -> bytes:
    """Transcodes a JSON text to UTF-8; raises Invalid if the charset is not supported.

    JSON is UTF-8 (RFC 8259), but existing clients also send Latin-1 (contract, section 2). Text
    without a declared charset that is valid UTF-8 is taken as UTF-8.
    """
    if body.isascii():
        return body
    declared_charset = _parse_charset(content_type)
    charset = declared_charset or default_charset
    if declared_charset is None:
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


def _parse_charset(content_type: str) -> str | None:
    message = Message()
    message["Content-Type"] = content_type
    charset = message.get_param("charset")
    return charset if isinstance(charset, str) else None


async def decode_json_body(
    body: bytes,
    encoding: str,
    charsets: tuple[str, str],
    max_bytes: int,
    slot: AdmissionSlot,
) -> JSON:
    """Decodes a JSON body; raises Invalid if it is not JSON, BodyTooLarge if it is too large.

    ``charsets`` are the Content-Type and the default charset. The limits hold for the decompressed
    text and for the memory of its values.
    """
    try:
        text = body
        if encoding:
            text = await decompress_body(body, encoding, max_bytes, slot.reserve_bytes)
        is_long = len(text) > json_codec.LARGE_BYTES
        if is_long or not text.isascii():
            text = await run_in_thread_if(is_long, transcode_to_utf8, text, *charsets)
        estimate = json_codec.estimate_memory_bytes
        memory_bytes = await run_in_thread(estimate, text) if is_long else estimate(text)
        # Estimated before parsing: a small text of nested values can need many times its size.
        if len(text) + memory_bytes <= slot.max_bytes:
            slot.reserve_bytes(memory_bytes)
            if is_long:
                lists = json_codec.LONG_LISTS
                return await run_in_thread(json_codec.loads, text, lists, slot.max_bytes)
            return json_codec.loads(text)
    except json_codec.JsonError as unreadable:
        message = f"The body must be a JSON object: {unreadable}."
        raise Invalid(Problem("invalid_field", message)) from None
    except DecompressionError:
        raise Invalid(BODY_INCOMPLETE) from None
    except DecompressedBodyTooLarge:
        raise BodyTooLarge from None
    raise BodyTooLarge


BODY_INCOMPLETE = Problem("invalid_field", "The body is not what its headers say, or was cut off.")
BODY_TOO_SLOW = Problem("invalid_field", "The body did not arrive in time.")


BODY_SECONDS = 8.0
"""Timeout of the next part of a body."""


async def iter_body_chunks(
    request: HttpRequest, max_bytes: int, slot: AdmissionSlot, bytes_per_second: int
) -> AsyncIterator[bytes]:
    """Yields the raw body as it arrives; raises BodyTooLarge, and Invalid if it is incomplete.

    Some bytes must arrive within each ``BODY_SECONDS``, and after the first ``BODY_SECONDS`` at least
    ``bytes_per_second`` on average (0 is no minimum).
    """
    reserved_bytes = request.fields.content_length or 0
    # The declared length is reserved at once, so that concurrent uploads cannot exceed the memory.
    slot.reserve_bytes(reserved_bytes)
    if (
        request.fields.headers.get("Expect", "").lower() == "100-continue"
        and request.version == "1.1"
    ):
        # 100 Continue is not sent earlier, so that a refused client does not send its body.
        with suppress(ConnectionError):
            request.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    loop = asyncio.get_running_loop()
    start_time, size, due_at = loop.time(), 0, math.inf
    while part := await _read_chunk(request, min(BODY_SECONDS, due_at - loop.time())):
        size += len(part)
        # Otherwise a client could hold a slot for hours with one byte at a time.
        if bytes_per_second:
            due_at = start_time + BODY_SECONDS + size / bytes_per_second
        if size > max_bytes:
            raise BodyTooLarge
        # Without a declared length (chunked), memory is reserved as the body arrives.
        if size > reserved_bytes:
            slot.reserve_bytes(size - reserved_bytes)
            reserved_bytes = size
        yield part


async def _read_chunk(request: HttpRequest, seconds: float) -> bytes:
    body = request.body
    try:
        # Reads whatever has arrived: with whole chunks, a slow but steady client would count as
        # stalled.
        if body.unread_bytes or body.is_complete:
            return await body.read_available()
        async with asyncio.timeout(seconds):
            return await body.read_available()
    except TimeoutError:
        request.has_body_timed_out = True
        raise Invalid(BODY_TOO_SLOW) from None
    except BodyIncomplete:
        raise Invalid(BODY_INCOMPLETE) from None


STEP_BYTES = 1024 * 1024
"""Bytes to decompress before more memory is reserved."""

INPUT_BYTES = 64 * 1024
"""Bytes given to zlib at once: it copies what follows a member, and a body may have millions."""

_ZLIB_OR_GZIP_WBITS = 47
_RAW_DEFLATE_WBITS = -15
"""``deflate`` without the zlib header: not conforming, but some clients send it."""


class DecompressionError(Exception):
    """The body does not match its Content-Encoding, or is truncated."""


class DecompressedBodyTooLarge(Exception):
    """The decompressed body exceeds the limit."""


async def decompress_body(
    body: bytes,
    encoding: str,
    max_bytes: int,
    reserve_bytes: Callable[[int], None] = lambda _size: None,
) -> bytes:
    """Decompresses a body; raises DecompressionError and DecompressedBodyTooLarge.

    Returns the body unchanged if the encoding is not supported; it will then fail to parse.
    ``reserve_bytes`` is called with the size of each part before the part is kept, and may raise.
    """
    encoding = encoding.strip().lower()
    if encoding not in ("gzip", "x-gzip", "deflate") or not body:
        return body
    # A zlib header names compression method 8 in its low bits (RFC 1950).
    is_raw_deflate = encoding == "deflate" and body[0] & 0xF != 8
    parts: list[bytes] = []
    size = 0
    steps = _iter_decompressed(body, _RAW_DEFLATE_WBITS if is_raw_deflate else _ZLIB_OR_GZIP_WBITS)
    # Always in a thread: a small body can decompress to a large one.
    while part := await asyncio.to_thread(next, steps, b""):
        # Checked for each part, so that a compression bomb is not decompressed to its end.
        if (size := size + len(part)) > max_bytes:
            raise DecompressedBodyTooLarge
        reserve_bytes(len(part))
        parts.append(part)
    return b"".join(parts)


def _iter_decompressed(body: bytes, wbits: int) -> Iterator[bytes]:
    """Yields the decompressed body in non-empty parts."""
    view, position = memoryview(body), 0
    while position < len(view):  # a gzip body may consist of several members
        decompressor = zlib.decompressobj(wbits=wbits)
        while not decompressor.eof:
            piece = view[position : position + INPUT_BYTES]
            try:
                part = decompressor.decompress(piece, STEP_BYTES)
            except zlib.error:
                raise DecompressionError from None
            # The output is limited to ``STEP_BYTES``, so zlib may not have consumed all input.
            unconsumed = decompressor.unconsumed_tail or decompressor.unused_data
            position += len(piece) - len(unconsumed)
            if part:
                yield part
            elif not piece and not decompressor.eof:
                # The input ends before the compressed stream does.
                raise DecompressionError
