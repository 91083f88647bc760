"""Long texts are compressed in memory and read back unchanged."""

from __future__ import annotations

import random

import pytest

from gateway.payloads.compressed_buffer import COMPRESSED_PART_BYTES, WINDOW_BYTES, CompressedBuffer

TEXT = b"".join(b'{"number":%d}' % number for number in range(COMPRESSED_PART_BYTES // 5))


async def compress_text(data: bytes, size: int) -> CompressedBuffer:
    text = CompressedBuffer()
    for start in range(0, len(data), size):
        await text.append_in_thread(data[start : start + size])
    return text


@pytest.mark.parametrize(
    "size",
    [
        1000,
        WINDOW_BYTES,
        COMPRESSED_PART_BYTES - 1,
        COMPRESSED_PART_BYTES,
        COMPRESSED_PART_BYTES + 1,
        len(TEXT),
    ],
)
async def test_text_is_independent_of_chunks_and_can_be_read_twice(size: int) -> None:
    text = await compress_text(TEXT, size)
    assert len(text) == len(TEXT)
    for _ in range(2):
        assert bytes(text) == TEXT
        chunks = [*text.iter_windows()]
        assert b"".join(chunks) == TEXT
        assert max(map(len, chunks)) <= WINDOW_BYTES


@pytest.mark.parametrize(
    "size", [0, 1, WINDOW_BYTES, COMPRESSED_PART_BYTES, 2 * COMPRESSED_PART_BYTES]
)
async def test_text_of_any_length_round_trips(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert bytes(await compress_text(data, 7000)) == data


async def test_put_and_feed_give_the_same_text() -> None:
    text = CompressedBuffer()
    for start in range(0, len(TEXT), 1000):
        text.append(TEXT[start : start + 1000])
    assert bytes(text) == TEXT == bytes(await compress_text(TEXT, 1000))


async def test_unread_text_takes_a_fraction_of_its_size() -> None:
    text = await compress_text(TEXT, WINDOW_BYTES)
    assert sum(map(len, text._compressed_parts)) + text._open_part.tell() < len(TEXT) / 2
