"""Converts JSON to values and back without loss: fields that are not translated stay byte-equal.

Strings are ``str``, integers ``int``; numbers with a point or an exponent are ``Decimal`` and are
encoded as they were read (``1.10``, ``1E5``). Floats are never used. The order of keys is kept.

msgspec decodes and encodes, because it is ten times as fast as any stricter library. It silently
keeps the last of two equal keys and reads ``-0`` as 0. So the decoded value is encoded again. If
that differs from the input by more than whitespace, simplejson decodes it, and its result counts.

In a large text, long lists become lazy sequences: they are decoded and encoded one slice at a time.
The values and bytes are the same. msgspec splits an object or a list into the undecoded texts of its
items, faster than it decodes them. A text that this cannot decode, because it is invalid or too much
of it is in no long list, is left to the decoding of the whole text.
"""

import io
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, compress, repeat
from operator import is_
from typing import Any, Union

import msgspec
import simplejson

from mappings import exact_json
from mappings.exact_json import MAX_DIGITS, ExactDecimal, encode_plain_value, parse_number
from mappings.lazy_sequences import (
    SLICE_SIZE,
    LazySequence,
    MappedSequence,
    SerializedSequence,
    iterate_chunks,
)

loads_trusted = exact_json.loads_trusted
DuplicateKeyError = exact_json.DuplicateKeyError
build_unique_object = exact_json.build_unique_object

# Texts that are decoded as a whole

MAX_DEPTH = 64
"""Maximum nesting of objects and arrays; the documents' deepest body has five levels."""

_SHALLOW_DEPTH = 8
"""Nesting of nearly all texts."""


def _decode_if_lossless(data: bytes, max_depth: int = MAX_DEPTH) -> tuple[Any, bytes] | None:
    """Decodes a text whose value would be encoded to the same text.

    Returns the value and its compact text; None if the text is invalid, or may be.
    """
    try:
        try:
            value = _SHALLOW_DECODER.decode(data)
        except msgspec.ValidationError:
            value = loads_trusted(data)
            if is_nested_deeper_than(value, max_depth):
                return None
        written = encode_plain_value(value)
        return (value, written) if _is_equal_text(written, data) else None
    except (ValueError, ArithmeticError, RecursionError):  # a DecodeError is a ValueError, too
        return None


def _is_equal_text(compact: bytes, data: bytes) -> bool:
    """Whether a text differs from a compact one by whitespace at most."""
    return compact == data or compact == msgspec.json.format(data, indent=-1)


def _decode_strictly(data: bytes, max_depth: int = MAX_DEPTH) -> tuple[str, tuple[Any, bytes]]:
    """Decodes a text that ``_decode_if_lossless`` does not.

    Returns the reason for a refusal, or "" and the value with its compact text.
    """
    reason, value = _decode_strictly_with_refusal_reason(data)
    if not reason and is_nested_deeper_than(value, max_depth):
        reason = f"nested deeper than {MAX_DEPTH}"
    return reason, (value, b"" if reason else encode_plain_value(value))


def _decode_strictly_with_refusal_reason(data: bytes) -> tuple[str, Any]:
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        if text.startswith(("\ufeff", "\xef\xbb\xbf")):  # simplejson would skip a second one too
            return "not JSON: line 1 column 1", None
        value = _STRICT_DECODER.decode(text)
        # simplejson accepts half of a surrogate pair, which cannot be encoded as UTF-8 again.
        if b"\\ud" in data or b"\\uD" in data:
            encode_plain_value(value)
    except UnicodeDecodeError:
        return "not UTF-8", None
    except UnicodeEncodeError:
        return "half of a surrogate pair", None
    except simplejson.JSONDecodeError as error:
        return f"not JSON: line {error.lineno} column {error.colno}", None
    except RecursionError:
        return f"nested deeper than {MAX_DEPTH}", None
    except (ValueError, ArithmeticError):  # from ``parse_number`` and from ``int``
        return f"a number of more than {MAX_DIGITS} digits", None
    except DuplicateKeyError as error:
        # Shortened, because the key is the client's and may be as long as the body.
        return f"the key {error.key[:60]!r} twice in one object", None
    return "", value


# Values, level by level, with functions that run in C for all items at once

_LISTS = {list, tuple}


def _iterate_dicts(level: Sequence[Any]) -> Iterator[dict[str, Any]]:
    return compress(level, map(is_, map(type, level), repeat(dict)))


def _list_nested_items(level: Sequence[Any]) -> list[Any]:
    """Lists what the dicts and lists of a level contain."""
    lists = compress(level, map(_LISTS.__contains__, map(type, level)))
    fields = map(dict.values, _iterate_dicts(level))
    return [*chain.from_iterable(fields), *chain.from_iterable(lists)]


def is_nested_deeper_than(value: Any, max_depth: int) -> bool:
    """Whether a decoded value is nested deeper than ``max_depth``."""
    level = [value]
    for _ in range(max_depth):
        level = _list_nested_items(level)
        if not level:
            return False
    return not _NESTS.isdisjoint(map(type, level))


_STRICT_DECODER = simplejson.JSONDecoder(
    object_pairs_hook=build_unique_object, parse_float=parse_number
)
_SHALLOW_TYPE: Any = None | bool | int | str
for _ in range(_SHALLOW_DEPTH):
    _SHALLOW_TYPE = Union[None, bool, int, str, dict[str, _SHALLOW_TYPE], list[_SHALLOW_TYPE]]  # noqa: UP007
_SHALLOW_DECODER = msgspec.json.Decoder(_SHALLOW_TYPE)
"""Proves a text shallow while it decodes: a search for its depth takes longer than its decoding.

It refuses numbers with a point or an exponent, for which there is no exact type.
"""


# Texts of any size

LONG_LISTS = frozenset({"payments", "update_payments", "remove_payments", "entries"})
"""Fields whose lists may be very long: the documents set no maximum of payments in a batch."""

LARGE_BYTES = 256 * 1024
"""Larger texts are decoded in slices, and processed in a thread instead of the event loop."""

VALUE_BYTES = 80
"""Estimated memory of one value, in addition to its text."""

SLICE_BYTES = VALUE_BYTES * LARGE_BYTES
"""Estimated memory of the values of a text of ``LARGE_BYTES``, which needs no check for room."""

_COUNTED_BYTES = 1024 * 1024
"""Bytes that are counted at once: counting blocks all other threads."""

_MAX_LIST_DEPTH = 3
"""Maximum depth of the objects in which long lists are decoded in slices."""


class JsonError(Exception):
    """The bytes are not JSON, or JSON that cannot be represented exactly.

    The message has the reason, but never the input.
    """


class NotSliceableError(Exception):
    """The text must be decoded at once: it is invalid, or too much of it is in no long list."""


def loads(
    data: bytes, packed_lists: Collection[str] = (), max_memory_bytes: int | None = None
) -> Any:
    """Decodes a JSON text, UTF-8 with or without a byte order mark; raises JsonError.

    Also refused: objects with a duplicate key, ``NaN`` and ``Infinity``, lone surrogates, more than
    ``MAX_DEPTH`` levels or ``MAX_DIGITS`` digits. ``-0`` becomes 0. Long lists in the fields
    ``packed_lists`` become lazy sequences. ``max_memory_bytes`` bounds the memory of a text that
    cannot be decoded in slices: of its values, and of escapes, which simplejson holds as objects.
    """
    if packed_lists and len(data) > LARGE_BYTES:
        with suppress(NotSliceableError):  # the decoding of the whole text below reports the error
            return loads_in_slices(data, packed_lists)
    if max_memory_bytes is not None and max_memory_bytes < (
        estimate_memory_bytes(data) + VALUE_BYTES * data.count(b"\\u")
    ):
        raise JsonError("too many values or escapes")
    if (decoded := _decode_if_lossless(data)) is None:
        reason, decoded = _decode_strictly(data)
        if reason:  # raised outside an except block, because a cause's text would hold the input
            raise JsonError(reason)
    return decoded[0]


def loads_object(
    data: bytes, packed_lists: Collection[str] = (), max_memory_bytes: int | None = None
) -> dict[str, Any] | None:
    """Like ``loads``; None for a text that it refuses, or that is no object."""
    try:
        value = loads(data, packed_lists, max_memory_bytes)
    except JsonError:
        return None
    return value if isinstance(value, dict) else None


def loads_in_slices(data: bytes, packed_lists: Collection[str], depth: int = 1) -> dict[str, Any]:
    """Like ``loads`` of an object, but never holds more than ``SLICE_BYTES`` of values at once.

    Raises NotSliceableError.
    """
    fields: dict[str, Any] = {}
    for name, value in _split_object(data).items():
        is_list = bytes(memoryview(value)[:1]) == b"["
        if is_list and name in packed_lists:
            rows = SerializedSequence.from_texts(_iter_slices(value, depth))
            # Most lists are short; as plain lists they take the simple path everywhere.
            fields[name] = rows if len(rows) > SLICE_SIZE else [*rows]
        elif len(memoryview(value)) > LARGE_BYTES and not is_list and depth < _MAX_LIST_DEPTH:
            fields[name] = loads_in_slices(value, packed_lists, depth + 1)
        else:
            fields[name], _ = _decode_value(bytes(value), MAX_DEPTH - depth)
    return fields


def estimate_memory_bytes(data: bytes) -> int:
    """Estimates the memory that the values of a JSON text need, without parsing it.

    Every value but the first follows a comma or opens an array or object, so that counting these
    bytes gives an upper bound. A hostile body is refused before it is parsed.
    """
    size = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        part = data[start : start + _COUNTED_BYTES]
        # Removing these bytes is faster than counting each of them.
        size += len(part) - len(part.translate(None, b",[{"))
    return VALUE_BYTES * size


def _split_object(text: bytes) -> Mapping[str, msgspec.Raw]:
    """Returns the texts of an object's fields; raises NotSliceableError for equal names."""
    try:
        fields = _OBJECT_DECODER.decode(text)
    except (ValueError, RecursionError):
        raise NotSliceableError from None
    # Of fields with equal names msgspec keeps one, so that the texts are too short together.
    parts = [part for field in fields.items() for part in (msgspec.json.encode(field[0]), field[1])]
    size = 1 + len(parts) + sum(len(memoryview(part)) for part in parts)
    if size != len(memoryview(text)) and not _has_only_fields(memoryview(text), fields):
        raise NotSliceableError
    return fields


def _has_only_fields(text: memoryview, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the fields follow each other in the text of an object, and no other one does."""
    end = 0
    for name, value in fields.items():
        match = _FIELD_START.match(text, end)
        if not match or match[1] != msgspec.json.encode(name):
            return False
        start, end = match.end(), match.end() + len(memoryview(value))
        # Digests, because comparing long buffers would block all other threads.
        if sha256(text[start:end]).digest() != sha256(value).digest():
            return False
    return _OBJECT_END.fullmatch(text, end) is not None


_FIELD_START = re.compile(rb'\s*[{,]\s*("(?:[^"\\]|\\.)*+")\s*:\s*')
_OBJECT_END = re.compile(rb"\s*\{?\s*\}\s*")


def _iter_slices(text: bytes, depth: int) -> Iterator[tuple[int, set[type], bytes]]:
    """Yields number, types and text of the rows, by slice, of a list in an object at a depth."""
    try:
        rows = _LIST_DECODER.decode(text)
    except (ValueError, RecursionError):
        raise NotSliceableError from None
    compact_rows = _find_row_check(rows)
    for some_rows in iterate_chunks(rows, SLICE_SIZE):
        data = b"[%b]" % b",".join(some_rows)
        compact_data = compact_rows(data) if compact_rows and len(data) <= LARGE_BYTES else None
        if compact_data is not None:
            yield len(some_rows), {dict}, compact_data
        else:
            compact_rows = None  # after one slice that is not alike, no other is tried
            values, data = _decode_value(data, MAX_DEPTH - depth)
            yield len(values), set(map(type, values)), data


RowShape = tuple[tuple[str, "RowShape"], ...]
"""The fields of an object in order, each with those of its value; empty if that is no object."""

_MAX_ROW_BYTES = 4096  # of a row for which a check is compiled, which takes a millisecond


def _find_row_check(rows: Sequence[msgspec.Raw]) -> Callable[[bytes], bytes | None] | None:
    """Returns ``_decode_if_lossless`` for rows that are like the first, with the compact text only.

    Nearly all rows of a list are alike, and are decoded to structs in half of the time of dicts.
    """
    if not rows or len(memoryview(rows[0])) > _MAX_ROW_BYTES:
        return None
    try:
        shape = _describe_shape(loads_trusted(bytes(rows[0])))
        return _compile_row_check(shape) if shape else None
    # Of values, or of names that no struct can have.
    except (ValueError, ArithmeticError, RecursionError, TypeError):
        return None


def _describe_shape(value: Any, depth: int = _SHALLOW_DEPTH) -> RowShape:
    if type(value) is not dict or not depth:
        return ()
    return tuple((name, _describe_shape(item, depth - 1)) for name, item in value.items())


@lru_cache(16)
def _compile_row_check(shape: RowShape) -> Callable[[bytes], bytes | None]:
    decode = msgspec.json.Decoder(list[_build_row_type(shape)]).decode  # type: ignore[misc]

    def compact_rows(data: bytes) -> bytes | None:
        with suppress(ValueError, ArithmeticError, RecursionError):
            written = encode_plain_value(decode(data))
            return written if _is_equal_text(written, data) else None
        return None

    return compact_rows


def _build_row_type(shape: RowShape) -> Any:
    if not shape:
        return _SHALLOW_TYPE
    fields = [(f"field_{n}", _build_row_type(inner) | None) for n, (_, inner) in enumerate(shape)]
    names = {field: name for (field, _), (name, _) in zip(fields, shape, strict=True)}
    return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True)


def _decode_value(data: bytes, max_depth: int) -> tuple[Any, bytes]:
    """Decodes a value; returns it with its compact text. Raises NotSliceableError."""
    if len(data) > LARGE_BYTES and estimate_memory_bytes(data) > SLICE_BYTES:
        raise NotSliceableError
    if (decoded := _decode_if_lossless(data, max_depth)) is None:
        reason, decoded = _decode_strictly(data, max_depth)
        if reason:
            raise NotSliceableError
    return decoded


_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


# Encoding


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
    if isinstance(value, LazySequence):
        raise _HasRowsError
    return exact_json.encode_exact_decimal(value)


_DECIMALS = {Decimal, ExactDecimal}
_SIMPLE = {str, int, bool, type(None)}
_PLAIN = _SIMPLE | {SerializedSequence, MappedSequence}
"""Types that need no check before they are encoded."""
_NESTS = {dict, *_LISTS}
_SHORT = _SIMPLE | _DECIMALS | {list, tuple}
"""Types in which ``has_rows`` does not search."""


def _check_encodable(value: Any) -> None:
    """Raises TypeError if the value cannot be encoded as JSON.

    msgspec silently encodes floats, bytes, dates, NaN and numeric keys, and has no option against
    it.
    """
    level: list[Any] = [value]
    # Level by level, because most values are plain: these are not looked at one by one.
    for _ in range(MAX_DEPTH + 1):
        kinds = {*map(type, level)}
        if others := kinds - _PLAIN - _NESTS - _DECIMALS:
            raise TypeError(f"not a JSON value: {others.pop().__name__}")
        if not (
            kinds.isdisjoint(_DECIMALS)
            or all(item.is_finite() for item in level if type(item) in _DECIMALS)
        ):
            raise TypeError("not a JSON value: NaN or an infinite number")
        if kinds.isdisjoint(_NESTS):
            return
        if not {str}.issuperset(map(type, chain.from_iterable(_iterate_dicts(level)))):
            raise TypeError("a key that is not text")
        level = _list_nested_items(level)
    raise TypeError(f"nested deeper than {MAX_DEPTH}")


_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=_encode_custom_value)
_CANONICAL_ENCODER = msgspec.json.Encoder(
    decimal_format="number", enc_hook=_encode_custom_value, order="sorted"
)
iterdumps = partial(_encode_chunks, encoder=_ENCODER)
"""Like ``dumps_trusted``, but yields one slice of rows at a time."""
iterdumps_canonical = partial(_encode_chunks, encoder=_CANONICAL_ENCODER)
"""Like ``iterdumps``, but with sorted fields, for digests."""
