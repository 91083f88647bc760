"""Long texts are compressed in memory and read back unchanged."""

from __future__ import annotations

import random

import pytest

from gateway.payloads.compressed_buffer import PART, WINDOW, CompressedBuffer

TEXT = b"".join(b'{"number":%d}' % number for number in range(PART // 5))


async def folded(data: bytes, size: int) -> CompressedBuffer:
    text = CompressedBuffer()
    for start in range(0, len(data), size):
        await text.add(data[start : start + size])
    return text


@pytest.mark.parametrize("size", [1000, WINDOW, PART - 1, PART, PART + 1, len(TEXT)])
async def test_however_it_comes_it_is_the_same_text_and_may_be_read_again(size: int) -> None:
    text = await folded(TEXT, size)
    assert len(text) == len(TEXT)
    for _ in range(2):
        assert bytes(text) == TEXT
        windows = [*text.windows()]
        assert b"".join(windows) == TEXT
        assert max(map(len, windows)) <= WINDOW


@pytest.mark.parametrize("size", [0, 1, WINDOW, PART, 2 * PART])
async def test_a_text_of_any_length_ends_where_it_ends(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert bytes(await folded(data, 7000)) == data


async def test_what_is_made_is_folded_as_what_comes() -> None:
    text = CompressedBuffer()
    for start in range(0, len(TEXT), 1000):
        text.put(TEXT[start : start + 1000])
    assert bytes(text) == TEXT == bytes(await folded(TEXT, 1000))


async def test_while_nobody_reads_it_it_takes_a_fraction_of_its_bytes() -> None:
    text = await folded(TEXT, WINDOW)
    assert sum(map(len, text._folded)) + text._last.tell() < len(TEXT) / 2
