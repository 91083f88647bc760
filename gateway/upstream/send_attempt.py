"""A single sending of a request: signed when it has a connection, and sent at most once."""

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
"""Bytes from which a body is hashed in a thread, so that it does not block other requests."""


class ResponseLost(Exception):
    """There is no usable response; after a connection failure, another connection may work."""

    def __init__(self, why: str, *, dropped: bool = False) -> None:
        super().__init__(why)
        self.dropped = dropped


class Unfit(ResponseLost):
    """The connection cannot be used, and nothing was sent on it."""


class Turn(Protocol):
    """Guards a write that only one process may send: its fencing token must still be current."""

    @property
    def is_fenced(self) -> bool:
        """Whether ownership was confirmed so recently that no other process can have taken it."""

    async def fence(self) -> None:
        """Confirms ownership; raises if another process owns the write."""


@unchanging(frozen=True, slots=True)
class Answered:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes | CompressedBuffer
    seen: SkewSample | None


class SentOnce:
    """A client middleware that sends one request at most once.

    ``path`` must equal the target in the request line. ``has_left``: a byte of the request may
    have reached the service.
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
        # Replaces aiohttp's own error: after a dropped connection aiohttp would silently send
        # GET, PUT and DELETE again.
        raise lost

    async def sign(self, headers: MutableMapping[str, str]) -> None:
        """Adds the credentials, once there is a connection; raises what the fence raises."""
        if self.left:
            # A bug in aiohttp or here: failing is better than paying twice.
            raise RuntimeError("a request is sent once")
        await self._stamp(headers)
        # The process may be suspended at any point. A pause before the timestamp is made is
        # detected here; after a long pause later, the service refuses the timestamp.
        while self.turn and not self.turn.is_fenced:
            await self.turn.fence()
            await self._stamp(headers)
        self.left = True

    async def _stamp(self, headers: MutableMapping[str, str]) -> None:
        """Adds the credentials to the headers, unless the client has signed the request."""


@dataclass(slots=True)
class Attempt(SentOnce):
    """A sending that the gateway signs.

    ``signed_target`` is the target as it is signed. ``on_bytes_received`` is called with the
    number of bytes of each received part.
    """

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
        """Reads the rest of the answer, with at most ``max_bytes`` of body; raises ResponseLost."""
        seen = measure_skew(headers, self.wall(), time.monotonic() - self.sent)
        return Answered(status, headers, await _body(headers, content, most, self.came), seen)


class SignedRequest(aiohttp.ClientRequest):
    """A request that is signed when it has a connection, so that waiting does not age it."""

    attempt: SentOnce

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # Data that arrived while it was idle (a proxy's 408) would be taken for the answer.
        if conn.protocol is None or conn.protocol.should_close or not conn.protocol.is_connected():
            raise Unfit("no connection that can be used", dropped=True)
        # yarl may have normalized the target, and then the signature would not match.
        if self.url.raw_path_qs != self.attempt.path:
            raise ValueError("the target would not be sent as it was given")
        await self.attempt.sign(self.headers)
        return await super().send(conn)


async def _body(
    headers: CIMultiDictProxy[str], content: StreamReader, most: int, came: Callable[[int], None]
) -> bytes | CompressedBuffer:
    declared = size = int(headers.get("Content-Length", 0))
    if size <= most and content.is_eof():  # the usual case: it arrived with the headers
        body = content.read_nowait()
        if len(body) > most:
            raise ResponseLost(f"an answer of more than {most} bytes")
        came(len(body))
        return await _decoded(body, headers.get("Content-Encoding", "identity"), most)
    # Kept compressed while it arrives, because lists can be tens of megabytes.
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
    # aiohttp's own decoding accepts a truncated gzip body as complete.
    if _is_plain(encoding) or not body:
        return body
    if encoding.strip().lower() not in ("gzip", "deflate"):
        raise ResponseLost("an answer in an encoding that was not requested")
    try:
        return await decompress_body(body, encoding, most)
    except (NotInflated, TooLarge):
        raise ResponseLost("an answer that cannot be decoded") from None


def _is_plain(encoding: str) -> bool:
    return encoding.strip().lower() == "identity"


def _unconnected(error: aiohttp.ClientConnectorError) -> str:
    """Describes a connect error; aiohttp's own message mentions TLS also for plain HTTP."""
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
    """Converts an error; the message does not contain the URL, whose query may name a person."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return ResponseLost(_unconnected(error), dropped=True)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ResponseLost(f"the proxy refuses to connect (status {error.status})")
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return ResponseLost("an answer that is not HTTP")
    if isinstance(error, aiohttp.ClientPayloadError):
        return ResponseLost("a truncated answer", dropped=True)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ResponseLost("the connection was closed before an answer arrived", dropped=True)
    if isinstance(error, OSError) and error.errno:
        return ResponseLost(
            f"the connection failed: {os.strerror(error.errno).lower()}", dropped=True
        )
    return ResponseLost(
        type(error).__name__, dropped=isinstance(error, OSError | aiohttp.ClientConnectionError)
    )
