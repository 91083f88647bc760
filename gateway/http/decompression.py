"""Bounded decompression of bodies.

The server does not decompress, because signed requests are forwarded with unchanged bodies.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

STEP_BYTES = 1024 * 1024
"""Bytes to decompress before more memory is reserved."""

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
    while body:  # a gzip body may consist of several members
        decompressor = zlib.decompressobj(wbits=wbits)
        rest = body
        while not decompressor.eof:
            try:
                part = decompressor.decompress(rest, STEP_BYTES)
            except zlib.error:
                raise DecompressionError from None
            # The output is limited to ``STEP_BYTES``, so zlib may not have consumed all input.
            rest = decompressor.unconsumed_tail
            if part:
                yield part
            elif not rest and not decompressor.eof:
                # The input ends before the compressed stream does.
                raise DecompressionError
        body = decompressor.unused_data
