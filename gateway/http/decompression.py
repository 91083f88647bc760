"""Compressed bodies of legacy requests, inflated within bounds.

Not left to aiohttp, which would inflate every request: those of the signed face go on as they came.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

STEP = 1024 * 1024
"""Bytes that are inflated before anybody is asked whether there is room for more."""

_ZLIB_OR_GZIP = 47
_BARE = -15
"""``deflate`` without zlib's head: wrong, and sent by some."""


class NotInflated(Exception):
    """The body is not what its Content-Encoding says, or was cut off."""


class TooLarge(Exception):
    """The body is larger than it may be."""


async def decompress_body(
    body: bytes, encoding: str, most: int, grows: Callable[[int], None] = lambda _size: None
) -> bytes:
    """The body, inflated where its encoding is one of ours; raises NotInflated and TooLarge.

    In any other encoding it is returned as it is: it will not be JSON. ``grows`` is told of each
    part's size, and may raise.
    """
    encoding = encoding.strip().lower()
    if encoding not in ("gzip", "x-gzip", "deflate") or not body:
        return body
    bare = encoding == "deflate" and body[0] & 0xF != 8
    parts: list[bytes] = []
    size = 0
    steps = _steps(body, _BARE if bare else _ZLIB_OR_GZIP)
    # In a thread, however small it is: little can become much.
    while part := await asyncio.to_thread(next, steps, b""):
        if (size := size + len(part)) > most:
            raise TooLarge
        grows(len(part))
        parts.append(part)
    return b"".join(parts)


def _steps(body: bytes, wbits: int) -> Iterator[bytes]:
    """The inflated body in parts that are not empty."""
    while body:  # gzip may be several members, one after the other
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
                raise NotInflated
        body = inflate.unused_data
