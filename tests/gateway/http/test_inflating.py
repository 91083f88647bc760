"""Compressed bodies of legacy requests."""

from __future__ import annotations

import gzip
import zlib

import pytest

from gateway.http.decompression import DecompressedBodyTooLarge, DecompressionError, decompress_body

TEXT = b'{"name":"Ada"}' * 1000


def bare(body: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(body) + deflate.flush()


COMPRESSED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip in capitals": (" GZIP ", gzip.compress(TEXT)),
    "gzip under its old name": ("x-gzip", gzip.compress(TEXT)),
    "gzip in two members": ("gzip", gzip.compress(TEXT[:5]) + gzip.compress(TEXT[5:])),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "deflate without its head": ("deflate", bare(TEXT)),
}


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED)
async def test_a_compressed_body_is_inflated(encoding: str, body: bytes) -> None:
    assert await decompress_body(body, encoding, len(TEXT)) == TEXT


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED)
async def test_what_grows_over_the_limit_is_too_large(encoding: str, body: bytes) -> None:
    with pytest.raises(DecompressedBodyTooLarge):
        await decompress_body(body, encoding, len(TEXT) - 1)


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED)
async def test_what_is_cut_off_is_not_inflated(encoding: str, body: bytes) -> None:
    with pytest.raises(DecompressionError):
        await decompress_body(body[:-5], encoding, len(TEXT))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_what_is_something_else_is_not_inflated(encoding: str) -> None:
    with pytest.raises(DecompressionError):
        await decompress_body(b'{"a":1}', encoding, 100)


@pytest.mark.parametrize("encoding", ["", "identity", "br", "x"])
async def test_in_any_other_encoding_it_stays_as_it_is(encoding: str) -> None:
    assert await decompress_body(b"hello", encoding, 100) == b"hello"


async def test_no_body_is_none_in_any_encoding() -> None:
    assert await decompress_body(b"", "gzip", 100) == b""
