"""Bounded decompression of bodies.

aiohttp's own decompression is off, because signed requests are forwarded with unchanged bodies.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

STEP = 1024 * 1024
"""Bytes to decompress before more memory is reserved."""

_ZLIB_OR_GZIP = 47
_BARE = -15
"""``deflate`` without the zlib header: not conforming, but some clients send it."""


class NotInflated(Exception):
    """The body does not match its Content-Encoding, or is truncated."""


class TooLarge(Exception):
    """The decompressed body exceeds the limit."""


async def decompress_body(
    body: bytes, encoding: str, most: int, grows: Callable[[int], None] = lambda _size: None
) -> bytes:
    """Decompresses a body; raises DecompressionError and DecompressedBodyTooLarge.

    Returns the body unchanged if the encoding is not supported; it will then fail to parse.
    ``reserve_bytes`` is called with the size of each part before the part is kept, and may raise.
    """
    encoding = encoding.strip().lower()
    if encoding not in ("gzip", "x-gzip", "deflate") or not body:
        return body
    # A zlib header names compression method 8 in its low bits (RFC 1950).
    bare = encoding == "deflate" and body[0] & 0xF != 8
    parts: list[bytes] = []
    size = 0
    steps = _steps(body, _BARE if bare else _ZLIB_OR_GZIP)
    # Always in a thread: a small body can decompress to a large one.
    while part := await asyncio.to_thread(next, steps, b""):
        # Checked for each part, so that a compression bomb is not decompressed to its end.
        if (size := size + len(part)) > most:
            raise TooLarge
        grows(len(part))
        parts.append(part)
    return b"".join(parts)


def _steps(body: bytes, wbits: int) -> Iterator[bytes]:
    """Yields the decompressed body in non-empty parts."""
    while body:  # a gzip body may consist of several members
        inflate = zlib.decompressobj(wbits=wbits)
        rest = body
        while not inflate.eof:
            try:
                part = inflate.decompress(rest, STEP)
            except zlib.error:
                raise NotInflated from None
            rest = inflate.unconsumed_tail
            if part:
                yield part
            elif not rest and not inflate.eof:
                # The input ends before the compressed stream does.
                raise NotInflated
        body = inflate.unused_data
