"""One sending of one request: signed when it leaves, sent once, answered or lost."""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import aiohttp

from gateway.clock import Sighting, sighting
from gateway.signing import Pair, signed_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.connector import Connection
    from multidict import CIMultiDictProxy

    from gateway.settings import CurrentWords

LARGE = 1024 * 1024
"""Bytes from which hashing a body is worth a thread: it would hold up every other request."""

ZLIB_OR_GZIP = 47
"""What zlib's ``wbits`` says for: 32 KB, and see from the head which of the two it is."""


class Lost(Exception):
    """No answer that can be read. ``dropped``: the connection failed, so another may do."""

    def __init__(self, why: str, *, dropped: bool = False) -> None:
        super().__init__(why)
        self.dropped = dropped


class Unfit(Lost):
    """A connection that cannot be used, or not any more; nothing was sent on it."""


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    seen: Sighting | None


@dataclass(slots=True)
class Attempt:
    """What is to be signed, handed to one request as its middleware.

    ``path`` is what must stand in the request line, ``signed`` the target that is signed.
    ``left`` tells whether a byte of it may have reached the service.
    """

    pair: Pair
    words: CurrentWords
    method: str
    path: str
    signed: str
    body: bytes
    wall: Callable[[], float]
    correction: float
    left: bool = False
    sent: float = 0.0

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        cast("SignedRequest", request).attempt = self
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as error:
            lost = _lost(error)
        # In the place of aiohttp's own error: when the connection drops it would send GET, PUT
        # and DELETE a second time by itself, and the service would see a request twice.
        raise lost

    async def sign(self, request: aiohttp.ClientRequest) -> None:
        if self.left:
            raise RuntimeError("an attempt is sent once")
        if request.url.raw_path_qs != self.path:
            raise ValueError("the target would not be sent as it was given")
        if len(self.body) > LARGE:
            request.headers.update(await asyncio.to_thread(self._headers))
        else:
            request.headers.update(self._headers())
        self.sent = time.monotonic()
        self.left = True

    def _headers(self) -> dict[str, str]:
        return signed_headers(
            self.pair,
            self.words,
            stamp=int(self.wall() + self.correction),
            method=self.method,
            target=self.signed,
            body=self.body,
        )

    async def answer(self, response: aiohttp.ClientResponse, most: int) -> Answered:
        """Reads the answer, up to ``most`` bytes of body; raises Lost."""
        seen = sighting(response.headers, self.wall(), time.monotonic() - self.sent)
        try:
            body = await _body(response, most)
        except (aiohttp.ClientError, OSError) as error:
            lost = _lost(error)
        else:
            return Answered(response.status, response.headers, body, seen)
        raise lost


class SignedRequest(aiohttp.ClientRequest):
    """A request that is signed with a connection in hand: waiting for one does not age it."""

    attempt: Attempt

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # What came unasked while it was idle (a proxy's 408, say) would be read as the answer.
        if conn.protocol is None or conn.protocol.should_close or not conn.protocol.is_connected():
            raise Unfit("no connection that can be used", dropped=True)
        await self.attempt.sign(self)
        return await super().send(conn)


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    size = response.content_length or 0
    parts: list[bytes] = []
    if size <= most:
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            if (size := size + len(part)) > most:
                break
    if size > most:
        raise Lost(f"an answer of more than {most} bytes")
    return _decoded(b"".join(parts), response.headers.get("Content-Encoding", "identity"), most)


def _decoded(body: bytes, encoding: str, most: int) -> bytes:
    """Not left to aiohttp, which takes a cut-off gzip for a whole one."""
    if encoding.strip().lower() == "identity" or not body:
        return body
    if encoding.strip().lower() not in ("gzip", "deflate"):
        raise Lost("an answer in an encoding that was not asked for")
    inflate = zlib.decompressobj(wbits=ZLIB_OR_GZIP)
    try:
        decoded = inflate.decompress(body, most + 1)
    except zlib.error:
        decoded = b""
    if not inflate.eof or inflate.unused_data or len(decoded) > most:
        raise Lost("an answer that cannot be decoded")
    return decoded


def _lost(error: Exception) -> Lost:
    """The error in words without its URL, whose query may name a person."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return Lost(str(error), dropped=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return Lost("an answer that is not HTTP")
    if isinstance(error, aiohttp.ClientPayloadError):
        return Lost("an answer that is cut off", dropped=True)
    return Lost(
        type(error).__name__, dropped=isinstance(error, OSError | aiohttp.ClientConnectionError)
    )
