"""Large texts are decoded and encoded in chunks, with the same results."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from gateway.payloads import json_codec, stored_json
from gateway.payloads.json_codec import LARGE_BYTES, LONG_LISTS, MAX_DEPTH, JsonError
from mappings.lazy_sequences import SLICE_SIZE, SerializedSequence

PAYMENT_ROW = {
    "recipient": {"id": "R-1"},
    "sourceAmount": "1.10",
    "memo": 'für 王😀 \\ " \n',
    "x": [1, {}],
}
ROW_COUNT = LARGE_BYTES // 60


def dump_batch(rows: list[Any], **fields: Any) -> bytes:
    return json.dumps({"sourceCurrency": "USD", **fields, "payments": rows}).encode()


def build_rows(count: int = ROW_COUNT) -> list[Any]:
    return [{**PAYMENT_ROW, "number": number} for number in range(count)]


def dump_compactly(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def dump_row(value: Any) -> bytes:
    return json.dumps(value).encode()


@cache
def dump_rows(dump: Callable[[Any], bytes]) -> tuple[bytes, ...]:
    return tuple(map(dump, build_rows()))


def dump_batch_with_row(
    row: bytes, index: int = ROW_COUNT - 5, dump: Callable[[Any], bytes] = dump_row
) -> bytes:
    """Build a large text in which one row has this text."""
    rows = list(dump_rows(dump))
    rows[index] = row
    return b'{"payments":[' + b",".join(rows) + b"]}"


def describe_outcome(load: Callable[[], Any]) -> Any:
    try:
        return json_codec.dumps(load())
    except JsonError as unreadable:
        return str(unreadable)


def check_equal_outcomes(data: bytes) -> Any:
    chunked_outcome = describe_outcome(lambda: json_codec.loads(data, LONG_LISTS))
    assert chunked_outcome == describe_outcome(lambda: json_codec.loads(data))
    return chunked_outcome


def test_chunked_decoding_round_trips_byte_for_byte() -> None:
    data = json.dumps(
        json.loads(dump_batch(build_rows())), separators=(",", ":"), ensure_ascii=False
    )
    decoded_batch = json_codec.loads(data.encode(), LONG_LISTS)
    assert isinstance(decoded_batch["payments"], SerializedSequence)
    assert json_codec.dumps(decoded_batch) == data.encode()
    assert b"".join(json_codec.dumps_chunks(decoded_batch)) == data.encode()
    assert len(json_codec.dumps_chunks(decoded_batch)) > ROW_COUNT / SLICE_SIZE


def test_only_long_named_lists_in_large_texts_are_packed() -> None:
    assert isinstance(
        json_codec.loads(dump_batch(build_rows(SLICE_SIZE)), LONG_LISTS)["payments"], list
    )
    data = dump_batch(build_rows(3), padding="x" * LARGE_BYTES, others=build_rows())
    decoded_batch = json_codec.loads(data, LONG_LISTS)
    assert isinstance(decoded_batch["payments"], list)
    assert isinstance(decoded_batch["others"], list)
    nested_decoded = json_codec.loads(
        json.dumps({"ok": True, "batch": {"payments": build_rows()}}).encode(), LONG_LISTS
    )
    assert isinstance(nested_decoded["batch"]["payments"], SerializedSequence)
    assert isinstance(json_codec.loads(dump_batch(build_rows()))["payments"], list)


UNUSUAL_ROWS = [
    b"1.10", b"-0", b"1E5", b"null", b'"text"', b"[]", b"{}", b'{"a":1,"a":2}', b'{"a":NaN}', b"", b"{", b"}", b"]",
    b'{"a":"\\ud800"}', b'{"a":"\\uD83D\\ude00"}', b'{"a":"\xff"}', b'{"a":01}', b'{"a":tru}', b"1 2", b'{"a":"\x01"}',
    b'{"a":' + b"9" * 4301 + b"}", b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2), b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1),
    b"[" * 5000 + b"]" * 5000, b"Infinity", '{"é":"王"}'.encode(), b' \t\r\n{ "a" : [ ] } ',
    b'{"recipient":{"id":"R-1","id":"R-2"},"sourceAmount":"1.10","memo":"","x":[],"number":1}',
    b'{"recipient":{"id":"R-1"},"sourceAmount":"1.10","memo":"","x":[],"number":1,"number":1}',
    b'{"recipient":{"id":"R-1"},"sourceAmount":1.10,"memo":"","x":[],"number":-0}',
    b'{"sourceAmount":"1.10","recipient":"R-1","memo":null,"number":1,"x":[1.50]}',
    b'{"recipient":{},"sourceAmount":"1.10","memo":"","x":{"id":{"id":"R-1"}},"number":1}',
]  # fmt: skip


@pytest.mark.parametrize("row", UNUSUAL_ROWS)
@pytest.mark.parametrize("index", [0, ROW_COUNT - 5])
def test_any_row_is_decoded_or_refused_as_without_chunks(row: bytes, index: int) -> None:
    check_equal_outcomes(dump_batch_with_row(row, index))
    check_equal_outcomes(dump_batch_with_row(row, index, dump_compactly))


@pytest.mark.parametrize(
    ("leading_text", "trailing_text"),
    [
        (b"", b" \n"), (b" ", b""), (b"\xef\xbb\xbf", b""), (b"", b"x"), (b"", b"{}"), (b"[", b"]"), (b"", b",")
    ],
)  # fmt: skip
def test_any_surrounding_text_is_decoded_or_refused_as_without_chunks(
    leading_text: bytes, trailing_text: bytes
) -> None:
    check_equal_outcomes(leading_text + dump_batch(build_rows()) + trailing_text)


@pytest.mark.parametrize("missing_bytes", [1, 2, 3, 100, LARGE_BYTES // 3])
def test_truncated_text_is_refused_as_without_chunks(missing_bytes: int) -> None:
    assert "not JSON" in str(
        check_equal_outcomes(dump_batch(build_rows(2 * ROW_COUNT))[:-missing_bytes])
    )


@pytest.mark.parametrize("separators", [(", ", ": "), (" ,\n", "\t:\r\n ")])
def test_formatted_text_is_packed(separators: tuple[str, str]) -> None:
    batch = {"ok": True, "batch": {"id": "B-1", "payments": build_rows()}}
    decoded_batch = json_codec.loads(json.dumps(batch, separators=separators).encode(), LONG_LISTS)
    assert isinstance(decoded_batch["batch"]["payments"], SerializedSequence)
    assert decoded_batch == batch


def test_duplicate_field_is_refused_as_without_chunks() -> None:
    data = dump_batch(build_rows())
    assert "twice" in str(check_equal_outcomes(data[:-1] + b',"payments":[]}'))
    assert "twice" in str(check_equal_outcomes(data[:-1] + b',"a":1,"a":2}'))
    assert "twice" in str(check_equal_outcomes(data[:-1] + b' , "a":1,"\\u0061":   2}'))
    assert "twice" in str(check_equal_outcomes(data[:-1] + b', "a": "1", "b": 2, "a": "1,"}'))


def test_digests_of_packed_and_plain_lists_are_equal() -> None:
    packed_batch, plain_batch = (
        json_codec.loads(dump_batch(build_rows()), LONG_LISTS),
        json_codec.loads(dump_batch(build_rows())),
    )
    for equal_values in (
        [packed_batch, plain_batch],
        [["POST", {"b": 1, "a": packed_batch}], ["POST", {"b": 1, "a": plain_batch}]],
    ):
        canonical_texts = [
            b"".join(json_codec.iterdumps_canonical(value)) for value in equal_values
        ]
        encoded_texts = [b"".join(json_codec.iterdumps(value)) for value in equal_values]
        assert canonical_texts[0] == canonical_texts[1]
        assert encoded_texts[0] == encoded_texts[1]
    assert b"".join(
        json_codec.iterdumps_canonical({"b": 1, "a": packed_batch["payments"]})
    ).startswith(b'{"a":[{')


def encode_legacy_packed(value: Any) -> str:
    """Encode a long text as the previous version stored it: as one value."""
    return "z" + base64.b64encode(zlib.compress(json_codec.dumps(value), 1)).decode()


@pytest.mark.parametrize("text_of", [stored_json.encode_value, encode_legacy_packed])
def test_long_stored_text_round_trips(text_of: Callable[[Any], stored_json.StoredText]) -> None:
    text = text_of({"entries": SerializedSequence(build_rows()), "other": [1, "é"]})
    assert stored_json.is_large(text)
    decoded_value = stored_json.decode_value(text)
    assert decoded_value == {"entries": build_rows(), "other": [1, "é"]}
    assert isinstance(decoded_value["entries"], SerializedSequence)


def test_short_stored_text_is_plain_json() -> None:
    assert stored_json.encode_value({"entries": [1, "é"]}) == '{"entries":[1,"é"]}'
    assert stored_json.decode_value('{"entries":[1,"é"]}') == {"entries": [1, "é"]}
