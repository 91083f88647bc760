"""Large texts are decoded and encoded in chunks, with the same results."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.payloads import json_codec, stored_json
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.payloads.json_codec import LARGE_BYTES, LONG_LISTS, MAX_DEPTH, JsonError
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence

PAYMENT_ROW = {
    "recipient": {"id": "R-1"},
    "sourceAmount": "1.10",
    "memo": 'für 王😀 \\ " \n',
    "x": [1, {}],
}
ROW_COUNT = LARGE_BYTES // 60


def dump_batch(rows: list[Any], **more: Any) -> bytes:
    return json.dumps({"sourceCurrency": "USD", **more, "payments": rows}).encode()


def build_rows(count: int = ROW_COUNT) -> list[Any]:
    return [{**PAYMENT_ROW, "number": number} for number in range(count)]


def dump_batch_with_row(row: bytes, place: int = ROW_COUNT - 5) -> bytes:
    """Build a large text in which one row has this text."""
    rows = [json.dumps(one).encode() for one in build_rows()]
    rows[place] = row
    return b'{"payments":[' + b",".join(rows) + b"]}"


def describe_outcome(read: Callable[[], Any]) -> Any:
    try:
        return json_codec.dumps(read())
    except JsonError as unreadable:
        return str(unreadable)


def compress_text(data: bytes) -> CompressedBuffer:
    async def made() -> CompressedBuffer:
        text = CompressedBuffer()
        for start in range(0, len(data), 70_000):
            await text.append_in_thread(data[start : start + 70_000])
        return text

    return asyncio.run(made())


def check_equal_outcomes(data: bytes) -> Any:
    by_slices = describe_outcome(lambda: json_codec.loads(data, LONG_LISTS))
    assert by_slices == describe_outcome(lambda: json_codec.loads(data))
    assert by_slices == describe_outcome(lambda: json_codec.loads(compress_text(data), LONG_LISTS))
    return by_slices


def test_chunked_decoding_round_trips_byte_for_byte() -> None:
    data = json.dumps(
        json.loads(dump_batch(build_rows())), separators=(",", ":"), ensure_ascii=False
    )
    read = json_codec.loads(data.encode(), LONG_LISTS)
    assert isinstance(read["payments"], CompressedSequence)
    assert json_codec.dumps(read) == data.encode()
    assert b"".join(json_codec.dumps_chunks(read)) == data.encode()
    assert bytes(json_codec.dumps_compressed(read)) == data.encode()
    assert len(json_codec.dumps_chunks(read)) > ROW_COUNT / SLICE_SIZE


def test_only_long_named_lists_in_large_texts_are_packed() -> None:
    assert isinstance(
        json_codec.loads(dump_batch(build_rows(SLICE_SIZE)), LONG_LISTS)["payments"], list
    )
    data = dump_batch(build_rows(3), padding="x" * LARGE_BYTES, others=build_rows())
    read = json_codec.loads(data, LONG_LISTS)
    assert isinstance(read["payments"], list)
    assert isinstance(read["others"], list)
    within = json_codec.loads(
        json.dumps({"ok": True, "batch": {"payments": build_rows()}}).encode(), LONG_LISTS
    )
    assert isinstance(within["batch"]["payments"], CompressedSequence)
    assert isinstance(json_codec.loads(dump_batch(build_rows()))["payments"], list)


ODD_ROWS = [
    b"1.10", b"-0", b"1E5", b"null", b'"text"', b"[]", b"{}", b'{"a":1,"a":2}', b'{"a":NaN}', b"", b"{", b"}", b"]",
    b'{"a":"\\ud800"}', b'{"a":"\\uD83D\\ude00"}', b'{"a":"\xff"}', b'{"a":01}', b'{"a":tru}', b"1 2", b'{"a":"\x01"}',
    b'{"a":' + b"9" * 4301 + b"}", b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2), b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1),
    b"[" * 5000 + b"]" * 5000, b"Infinity", '{"é":"王"}'.encode(), b' \t\r\n{ "a" : [ ] } ',
]  # fmt: skip


@pytest.mark.parametrize("row", ODD_ROWS)
@pytest.mark.parametrize("place", [0, ROW_COUNT - 5])
def test_any_row_is_decoded_or_refused_as_without_chunks(row: bytes, place: int) -> None:
    check_equal_outcomes(dump_batch_with_row(row, place))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b" \n"), (b" ", b""), (b"\xef\xbb\xbf", b""), (b"", b"x"), (b"", b"{}"), (b"[", b"]"), (b"", b",")
    ],
)  # fmt: skip
def test_any_surrounding_text_is_decoded_or_refused_as_without_chunks(
    before: bytes, after: bytes
) -> None:
    check_equal_outcomes(before + dump_batch(build_rows()) + after)


@pytest.mark.parametrize("cut", [1, 2, 3, 100, LARGE_BYTES // 3])
def test_truncated_text_is_refused_as_without_chunks(cut: int) -> None:
    assert "not JSON" in str(check_equal_outcomes(dump_batch(build_rows(2 * ROW_COUNT))[:-cut]))


def test_duplicate_field_is_refused_as_without_chunks() -> None:
    data = dump_batch(build_rows())
    assert "twice" in str(check_equal_outcomes(data[:-1] + b',"payments":[]}'))
    assert "twice" in str(check_equal_outcomes(data[:-1] + b',"a":1,"a":2}'))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 70_000), st.text(max_size=5))
def test_result_is_independent_of_window_boundaries(padding: int, text: str) -> None:
    rows = [{"memo": f"{text}😀é"}] * 15_000
    data = json.dumps({"padding": "x" * padding, "payments": rows}, ensure_ascii=False).encode(
        errors="replace"
    )
    assert (
        json_codec.loads(data, LONG_LISTS)
        == json_codec.loads(data)
        == json_codec.loads(compress_text(data), LONG_LISTS)
    )


def test_non_json_row_is_not_encoded() -> None:
    for odd in (1.5, {1: "a"}, b"bytes"):
        for write in (json_codec.dumps, json_codec.dumps_chunks, json_codec.dumps_compressed):
            with pytest.raises(TypeError):
                write({"payments": CompressedSequence([{}] * SLICE_SIZE + [{"a": odd}])})


def test_digests_of_packed_and_plain_lists_are_equal() -> None:
    packed, plain = (
        json_codec.loads(dump_batch(build_rows()), LONG_LISTS),
        json_codec.loads(dump_batch(build_rows())),
    )
    for pair in (
        [packed, plain],
        [["POST", {"b": 1, "a": packed}], ["POST", {"b": 1, "a": plain}]],
    ):
        ordered = [b"".join(json_codec.iterdumps_canonical(one)) for one in pair]
        written = [b"".join(json_codec.iterdumps(one)) for one in pair]
        assert ordered[0] == ordered[1]
        assert written[0] == written[1]
    assert b"".join(json_codec.iterdumps_canonical({"b": 1, "a": packed["payments"]})).startswith(
        b'{"a":[{'
    )


def encode_legacy_packed(value: Any) -> str:
    """Encode a long text as the previous version stored it: as one value."""
    return "z" + base64.b64encode(zlib.compress(json_codec.dumps(value), 1)).decode()


@pytest.mark.parametrize("text_of", [stored_json.encode_value, encode_legacy_packed])
def test_long_stored_text_round_trips(text_of: Callable[[Any], stored_json.StoredText]) -> None:
    text = text_of({"entries": CompressedSequence(build_rows()), "other": [1, "é"]})
    assert stored_json.is_large(text)
    read = stored_json.decode_value(text)
    assert read == {"entries": build_rows(), "other": [1, "é"]}
    assert isinstance(read["entries"], CompressedSequence)


def test_short_stored_text_is_plain_json() -> None:
    assert stored_json.encode_value({"entries": [1, "é"]}) == '{"entries":[1,"é"]}'
    assert stored_json.decode_value('{"entries":[1,"é"]}') == {"entries": [1, "é"]}
