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
from gateway.payloads.json_codec import DEPTH, LARGE, LONG, Unreadable
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence

ROW = {"recipient": {"id": "R-1"}, "sourceAmount": "1.10", "memo": 'für 王😀 \\ " \n', "x": [1, {}]}
COUNT = LARGE // 60


def text_of(rows: list[Any], **more: Any) -> bytes:
    return json.dumps({"sourceCurrency": "USD", **more, "payments": rows}).encode()


def many(count: int = COUNT) -> list[Any]:
    return [{**ROW, "number": number} for number in range(count)]


def with_row(row: bytes, place: int = COUNT - 5) -> bytes:
    """Build a large text in which one row has this text."""
    rows = [json.dumps(one).encode() for one in many()]
    rows[place] = row
    return b'{"payments":[' + b",".join(rows) + b"]}"


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return json_codec.dumps(read())
    except Unreadable as unreadable:
        return str(unreadable)


def folded(data: bytes) -> CompressedBuffer:
    async def made() -> CompressedBuffer:
        text = CompressedBuffer()
        for start in range(0, len(data), 70_000):
            await text.add(data[start : start + 70_000])
        return text

    return asyncio.run(made())


def assert_the_same(data: bytes) -> Any:
    by_slices = outcome(lambda: json_codec.read(data, LONG))
    assert by_slices == outcome(lambda: json_codec.read(data))
    assert by_slices == outcome(lambda: json_codec.read(folded(data), LONG))
    return by_slices


def test_what_is_read_by_slices_is_written_with_the_same_bytes() -> None:
    data = json.dumps(json.loads(text_of(many())), separators=(",", ":"), ensure_ascii=False)
    read = json_codec.read(data.encode(), LONG)
    assert isinstance(read["payments"], CompressedSequence)
    assert json_codec.dumps(read) == data.encode()
    assert b"".join(json_codec.dumps_chunks(read)) == data.encode()
    assert bytes(json_codec.dumps_compressed(read)) == data.encode()
    assert len(json_codec.dumps_chunks(read)) > COUNT / SLICE_SIZE


def test_only_long_lists_of_these_names_in_large_texts_are_packed() -> None:
    assert isinstance(json_codec.read(text_of(many(SLICE_SIZE)), LONG)["payments"], list)
    data = text_of(many(3), padding="x" * LARGE, others=many())
    read = json_codec.read(data, LONG)
    assert isinstance(read["payments"], list)
    assert isinstance(read["others"], list)
    within = json_codec.read(json.dumps({"ok": True, "batch": {"payments": many()}}).encode(), LONG)
    assert isinstance(within["batch"]["payments"], CompressedSequence)
    assert isinstance(json_codec.read(text_of(many()))["payments"], list)


ODD = [
    b"1.10", b"-0", b"1E5", b"null", b'"text"', b"[]", b"{}", b'{"a":1,"a":2}', b'{"a":NaN}', b"", b"{", b"}", b"]",
    b'{"a":"\\ud800"}', b'{"a":"\\uD83D\\ude00"}', b'{"a":"\xff"}', b'{"a":01}', b'{"a":tru}', b"1 2", b'{"a":"\x01"}',
    b'{"a":' + b"9" * 4301 + b"}", b"[" * (DEPTH - 2) + b"]" * (DEPTH - 2), b"[" * (DEPTH - 1) + b"]" * (DEPTH - 1),
    b"[" * 5000 + b"]" * 5000, b"Infinity", '{"é":"王"}'.encode(), b' \t\r\n{ "a" : [ ] } ',
]  # fmt: skip


@pytest.mark.parametrize("row", ODD)
@pytest.mark.parametrize("place", [0, COUNT - 5])
def test_whatever_a_row_is_it_is_read_or_refused_as_in_the_whole(row: bytes, place: int) -> None:
    assert_the_same(with_row(row, place))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b" \n"), (b" ", b""), (b"\xef\xbb\xbf", b""), (b"", b"x"), (b"", b"{}"), (b"[", b"]"), (b"", b",")
    ],
)  # fmt: skip
def test_whatever_stands_around_it_is_read_or_refused_as_in_the_whole(
    before: bytes, after: bytes
) -> None:
    assert_the_same(before + text_of(many()) + after)


@pytest.mark.parametrize("cut", [1, 2, 3, 100, LARGE // 3])
def test_a_text_that_is_cut_off_is_refused_as_the_whole_is(cut: int) -> None:
    assert "not JSON" in str(assert_the_same(text_of(many(2 * COUNT))[:-cut]))


def test_a_field_that_is_given_twice_is_refused_as_in_the_whole() -> None:
    data = text_of(many())
    assert "twice" in str(assert_the_same(data[:-1] + b',"payments":[]}'))
    assert "twice" in str(assert_the_same(data[:-1] + b',"a":1,"a":2}'))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 70_000), st.text(max_size=5))
def test_it_does_not_matter_where_a_window_ends(padding: int, text: str) -> None:
    rows = [{"memo": f"{text}😀é"}] * 15_000
    data = json.dumps({"padding": "x" * padding, "payments": rows}, ensure_ascii=False).encode(
        errors="replace"
    )
    assert (
        json_codec.read(data, LONG) == json_codec.read(data) == json_codec.read(folded(data), LONG)
    )


def test_what_is_no_json_is_not_written_from_rows_either() -> None:
    for odd in (1.5, {1: "a"}, b"bytes"):
        for write in (json_codec.dumps, json_codec.dumps_chunks, json_codec.dumps_compressed):
            with pytest.raises(TypeError):
                write({"payments": CompressedSequence([{}] * SLICE_SIZE + [{"a": odd}])})


def test_digests_are_made_of_the_same_bytes() -> None:
    packed, plain = json_codec.read(text_of(many()), LONG), json_codec.read(text_of(many()))
    for both in (
        [packed, plain],
        [["POST", {"b": 1, "a": packed}], ["POST", {"b": 1, "a": plain}]],
    ):
        ordered = [b"".join(json_codec.iterdumps_canonical(one)) for one in both]
        written = [b"".join(json_codec.iterdumps(one)) for one in both]
        assert ordered[0] == ordered[1]
        assert written[0] == written[1]
    assert b"".join(json_codec.iterdumps_canonical({"b": 1, "a": packed["payments"]})).startswith(
        b'{"a":[{'
    )


def as_it_was_packed(value: Any) -> str:
    """Encode a long text as the previous version stored it: as one value."""
    return "z" + base64.b64encode(zlib.compress(json_codec.dumps(value), 1)).decode()


@pytest.mark.parametrize("text_of", [stored_json.encode_stored, as_it_was_packed])
def test_a_long_text_of_the_state_is_read_again(text_of: Callable[[Any], stored_json.Text]) -> None:
    text = text_of({"entries": CompressedSequence(many()), "other": [1, "é"]})
    assert stored_json.is_long(text)
    read = stored_json.value(text)
    assert read == {"entries": many(), "other": [1, "é"]}
    assert isinstance(read["entries"], CompressedSequence)


def test_a_short_text_of_the_state_is_json_as_it_always_was() -> None:
    assert stored_json.encode_stored({"entries": [1, "é"]}) == '{"entries":[1,"é"]}'
    assert stored_json.value('{"entries":[1,"é"]}') == {"entries": [1, "é"]}
