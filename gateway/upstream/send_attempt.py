"""One sending of one request: signed when it leaves, sent once, answered or lost."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp
from aiohttp.http import HttpProcessingError

from gateway.auth.signing import Credentials, build_signature_headers
from gateway.http import progress
from gateway.http.decompression import NotInflated, TooLarge, decompress_body
from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.upstream.clock import SkewSample, measure_skew
from mappings.unchanging import unchanging

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from aiohttp.connector import Connection
    from aiohttp.streams import StreamReader
    from multidict import CIMultiDictProxy

    from gateway.config.settings import CurrentWords

LARGE = 1024 * 1024
"""Bytes from which hashing a body is worth a thread: it would hold up every other request."""


class ResponseLost(Exception):
    """No answer that can be read. ``dropped``: the connection failed, so another may do."""

    def __init__(self, why: str, *, dropped: bool = False) -> None:
        super().__init__(why)
        self.dropped = dropped


class Unfit(ResponseLost):
    """A connection that cannot be used, or not any more; nothing was sent on it."""


class Turn(Protocol):
    """Whose turn it is to send something that nobody else may send meanwhile."""

    @property
    def is_fenced(self) -> bool:
        """Whether it was made sure of so short a time ago that nobody can have taken it."""

    async def fence(self) -> None:
        """Makes sure of it; raises what the sender is to know where another has it."""


@unchanging(frozen=True, slots=True)
class Answered:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes | CompressedBuffer
    seen: SkewSample | None


class SentOnce:
    """One sending, handed to one request as its middleware: it leaves once, or not at all.

    ``path`` is what must stand in the request line. ``left`` tells whether a byte of it may have
    reached the service.
    """

    path: str
    turn: Turn | None
    left: bool

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        cast("SignedRequest", request).attempt = self
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as error:
            lost = build_response_lost(error)
        # In the place of aiohttp's own error: when the connection drops it would send GET, PUT
        # and DELETE a second time by itself, and the service would see a request twice.
        raise lost

    async def sign(self, headers: MutableMapping[str, str]) -> None:
        """Called with a connection in hand."""
        if self.left:
            raise RuntimeError("a request is sent once")
        await self._stamp(headers)
        # A process may be paused anywhere, for any time. If that is before the stamp is made, it is
        # seen here; if it is after this, the service refuses the stamp.
        while self.turn and not self.turn.is_fenced:
            await self.turn.fence()
            await self._stamp(headers)
        self.left = True

    async def _stamp(self, headers: MutableMapping[str, str]) -> None:
        """Puts the credentials on; one that its client has signed has its own."""


@dataclass(slots=True)
class Attempt(SentOnce):
    """What is to be signed; ``signed`` is the target that is. ``came`` hears how many bytes came."""

    pair: Credentials
    words: CurrentWords
    method: str
    path: str
    signed: str
    body: bytes | CompressedBuffer
    wall: Callable[[], float]
    correction: float
    came: Callable[[int], None]
    turn: Turn | None = None
    left: bool = False
    sent: float = 0.0

    async def _stamp(self, headers: MutableMapping[str, str]) -> None:
        if len(self.body) > LARGE:
            headers.update(await asyncio.to_thread(self._headers))
        else:
            headers.update(self._headers())
        self.sent = time.monotonic()

    def _headers(self) -> dict[str, str]:
        return build_signature_headers(
            self.pair,
            self.words,
            stamp=int(self.wall() + self.correction),
            method=self.method,
            target=self.signed,
            body=self.body,
        )

    async def answer(
        self, status: int, headers: CIMultiDictProxy[str], content: StreamReader, most: int
    ) -> Answered:
        """Reads the rest of the answer, up to ``most`` bytes of body; raises Lost."""
        seen = measure_skew(headers, self.wall(), time.monotonic() - self.sent)
        return Answered(status, headers, await _body(headers, content, most, self.came), seen)


class SignedRequest(aiohttp.ClientRequest):
    """A request that is signed with a connection in hand: waiting for one does not age it."""

    attempt: SentOnce

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # What came unasked while it was idle (a proxy's 408, say) would be read as the answer.
        if conn.protocol is None or conn.protocol.should_close or not conn.protocol.is_connected():
            raise Unfit("no connection that can be used", dropped=True)
        if self.url.raw_path_qs != self.attempt.path:
            raise ValueError("the target would not be sent as it was given")
        await self.attempt.sign(self.headers)
        return await super().send(conn)


async def _body(
    headers: CIMultiDictProxy[str], content: StreamReader, most: int, came: Callable[[int], None]
) -> bytes | CompressedBuffer:
    declared = size = int(headers.get("Content-Length", 0))
    if size <= most and content.is_eof():  # all of it came with its head, as of most answers
        body = content.read_nowait()
        if len(body) > most:
            raise ResponseLost(f"an answer of more than {most} bytes")
        came(len(body))
        return await _decoded(body, headers.get("Content-Encoding", "identity"), most)
    whole = CompressedBuffer()
    if size <= most:
        size = 0
        while part := await content.readany():
            came(len(part))
            await whole.add(part)
            if (size := size + len(part)) > most:
                break
            if size > json_codec.LARGE or declared > json_codec.LARGE:
                progress.told("receiving_response", size, declared)
    if size > most:
        raise ResponseLost(f"an answer of more than {most} bytes")
    encoding = headers.get("Content-Encoding", "identity")
    if len(whole) > json_codec.LARGE and _is_plain(encoding):
        return whole
    return await _decoded(bytes(whole), encoding, most)


async def _decoded(body: bytes, encoding: str, most: int) -> bytes:
    """Not left to aiohttp, which takes a cut-off gzip for a whole one."""
    if _is_plain(encoding) or not body:
        return body
    if encoding.strip().lower() not in ("gzip", "deflate"):
        raise ResponseLost("an answer in an encoding that was not asked for")
    try:
        return await decompress_body(body, encoding, most)
    except (NotInflated, TooLarge):
        raise ResponseLost("an answer that cannot be decoded") from None


def _is_plain(encoding: str) -> bool:
    return encoding.strip().lower() == "identity"


def _unconnected(error: aiohttp.ClientConnectorError) -> str:
    """Where to, and why not: aiohttp's own words name TLS also where none was to be spoken."""
    where = f"[{error.host}]" if ":" in error.host else error.host
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        where = f"the proxy {where}"
    met = error.os_error
    if isinstance(met, ssl.SSLCertVerificationError):
        why = f"{met.verify_message} ({met.reason})"
    elif isinstance(met, ssl.SSLError | socket.gaierror) or not met.errno:
        why = met.strerror or str(met)
    else:
        why = os.strerror(met.errno).lower()
    return f"cannot connect to {where}:{error.port}: {why}"


def build_response_lost(error: Exception) -> ResponseLost:
    """The error in words without its URL, whose query may name a person."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return ResponseLost(_unconnected(error), dropped=True)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ResponseLost(f"the proxy refuses to connect (status {error.status})")
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return ResponseLost("an answer that is not HTTP")
    if isinstance(error, aiohttp.ClientPayloadError):
        return ResponseLost("an answer that is cut off", dropped=True)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ResponseLost("the connection was closed before an answer came", dropped=True)
    if isinstance(error, OSError) and error.errno:
        return ResponseLost(
            f"the connection failed: {os.strerror(error.errno).lower()}", dropped=True
        )
    return ResponseLost(
        type(error).__name__, dropped=isinstance(error, OSError | aiohttp.ClientConnectionError)
    )
