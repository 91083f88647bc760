"""Encodes values as compact JSON, in one piece or one slice of rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec

from gateway.payloads.json_codec.text_decoding import (
    LISTS,
    MAX_DEPTH,
    iterate_dicts,
    list_nested_items,
)
from mappings.exact_json import ExactDecimal
from mappings.lazy_sequences import LazySequence, MappedSequence, SerializedSequence


def dumps(value: Any) -> bytes:
    """Encodes as compact, unescaped UTF-8 JSON.

    Raises TypeError for other values, such as floats; the rows of lazy sequences are not checked.
    """
    _check_encodable(value)
    return dumps_trusted(value)


def dumps_trusted(value: Any) -> bytes:
    """Like ``dumps``, but without the check, which takes longer than the encoding."""
    # Nearly all values have no rows: trying costs less than searching for them first.
    try:
        return _ENCODER.encode(value)
    except _HasRowsError:
        buffer = io.BytesIO()
        buffer.writelines(_iter_encoded_slices(value, _ENCODER))
        return buffer.getvalue()


def dumps_chunks(value: Any) -> list[bytes]:
    """Like ``dumps``, but returns chunks, because joining them would hold a second copy."""
    _check_encodable(value)
    return [*iterdumps(value)]


def iterdumps(value: Any) -> Iterator[bytes]:
    """Like ``dumps_trusted``, but yields one slice of rows at a time."""
    return _encode_chunks(value, _ENCODER)


def iterdumps_canonical(value: Any) -> Iterator[bytes]:
    """Like ``iterdumps``, but with sorted fields, for digests."""
    return _encode_chunks(value, _CANONICAL_ENCODER)


def _encode_chunks(value: Any, encoder: msgspec.json.Encoder) -> Iterator[bytes]:
    try:
        return iter((encoder.encode(value),))
    except _HasRowsError:
        return _iter_encoded_slices(value, encoder)


def _iter_encoded_slices(value: Any, encoder: msgspec.json.Encoder) -> Iterator[bytes]:
    if isinstance(value, LazySequence):
        comma = b""
        yield b"["
        texts: Iterable[bytes] = map(encoder.encode, value.iterate_slices())
        if isinstance(value, SerializedSequence) and encoder is _ENCODER:
            texts = value.iterate_texts()
        for text in texts:
            # Without the brackets, so that the slices together form one list.
            yield comma + text[1:-1]
            comma = b","
        yield b"]"
    elif isinstance(value, dict):
        comma = b"{"
        for name in sorted(value) if encoder is _CANONICAL_ENCODER else value:
            yield b"%b%b:" % (comma, encoder.encode(name))
            yield from _encode_chunks(value[name], encoder)
            comma = b","
        yield b"}"
    else:
        comma = b"["
        for item in value:
            yield comma
            yield from _encode_chunks(item, encoder)
            comma = b","
        yield b"]"


def has_rows(value: Any) -> bool:
    """Whether a value, or an object in it, contains lazy sequences."""
    pending = [value]
    # Without recursion, because this runs several times for a request.
    for item in pending:
        if isinstance(item, dict):
            if not _SHORT.issuperset(map(type, item.values())):
                pending += [field for field in item.values() if type(field) not in _SHORT]
        elif isinstance(item, LazySequence):
            return True
    return False


class _HasRowsError(Exception):
    """The value contains lazy sequences, so it must be encoded in slices."""


def _encode_custom_value(value: Any) -> msgspec.Raw:
    """Encodes the types that msgspec does not support."""
    if isinstance(value, ExactDecimal):
        return msgspec.Raw(str(value).encode())
    if isinstance(value, LazySequence):
        raise _HasRowsError
    raise TypeError(f"not a JSON value: {type(value).__name__}")


_DECIMALS = {Decimal, ExactDecimal}
_TEXT = {str}
_SIMPLE = {str, int, bool, type(None)}
_PLAIN = _SIMPLE | {SerializedSequence, MappedSequence}
"""Types that need no check before they are encoded."""
_NESTS = {dict, *LISTS}
_SHORT = _SIMPLE | _DECIMALS | {list, tuple}
"""Types in which ``has_rows`` does not search."""


def _check_encodable(value: Any) -> None:
    """Raises TypeError if the value cannot be encoded as JSON."""
    if flaw := _find_encoding_problem(value):
        raise TypeError(flaw)


def _find_encoding_problem(value: Any) -> str:
    """Returns the reason that a value cannot be encoded as JSON, or an empty string.

    msgspec silently encodes floats, bytes, dates, NaN and numeric keys, and has no option against
    it.
    """
    level: list[Any] = [value]
    # Level by level, because most values are plain: these are not looked at one by one.
    for _ in range(MAX_DEPTH + 1):
        kinds = {*map(type, level)}
        if others := kinds - _PLAIN - _NESTS - _DECIMALS:
            return f"not a JSON value: {others.pop().__name__}"
        if not (
            kinds.isdisjoint(_DECIMALS)
            or all(item.is_finite() for item in level if type(item) in _DECIMALS)
        ):
            return "not a JSON value: NaN or an infinite number"
        if kinds.isdisjoint(_NESTS):
            return ""
        if not _TEXT.issuperset(map(type, chain.from_iterable(iterate_dicts(level)))):
            return "a key that is not text"
        level = list_nested_items(level)
    return f"nested deeper than {MAX_DEPTH}"


_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=_encode_custom_value)
_CANONICAL_ENCODER = msgspec.json.Encoder(
    decimal_format="number", enc_hook=_encode_custom_value, order="sorted"
)
