"""Compressed bodies of legacy requests."""

from __future__ import annotations

import gzip
import time
import zlib

import pytest

from gateway.http.request_reader import (
    DecompressedBodyTooLarge,
    DecompressionError,
    decompress_body,
)

TEXT = b'{"name":"Ada"}' * 1000


def deflate_raw(body: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(body) + deflate.flush()


COMPRESSED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip in capitals": (" GZIP ", gzip.compress(TEXT)),
    "gzip under its old name": ("x-gzip", gzip.compress(TEXT)),
    "gzip in two members": ("gzip", gzip.compress(TEXT[:5]) + gzip.compress(TEXT[5:])),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "deflate without its head": ("deflate", deflate_raw(TEXT)),
}


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED)
async def test_compressed_body_is_decompressed(encoding: str, body: bytes) -> None:
    assert await decompress_body(body, encoding, len(TEXT)) == TEXT


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED)
async def test_body_that_exceeds_limit_after_decompression_is_too_large(
    encoding: str, body: bytes
) -> None:
    with pytest.raises(DecompressedBodyTooLarge):
        await decompress_body(body, encoding, len(TEXT) - 1)


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED)
async def test_truncated_body_is_not_decompressed(encoding: str, body: bytes) -> None:
    with pytest.raises(DecompressionError):
        await decompress_body(body[:-5], encoding, len(TEXT))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_body_in_another_format_is_not_decompressed(encoding: str) -> None:
    with pytest.raises(DecompressionError):
        await decompress_body(b'{"a":1}', encoding, 100)


@pytest.mark.parametrize("encoding", ["", "identity", "br", "x"])
async def test_unknown_encoding_leaves_body_unchanged(encoding: str) -> None:
    assert await decompress_body(b"hello", encoding, 100) == b"hello"


async def test_missing_body_stays_missing_in_any_encoding() -> None:
    assert await decompress_body(b"", "gzip", 100) == b""


async def test_time_grows_with_the_number_of_members_not_with_its_square() -> None:
    seconds = []
    for count in (10_000, 80_000):
        started_at = time.process_time()
        assert await decompress_body(gzip.compress(b"") * count, "gzip", 100) == b""
        seconds.append(time.process_time() - started_at)
    assert seconds[1] < 24 * seconds[0], "eight times the members"
