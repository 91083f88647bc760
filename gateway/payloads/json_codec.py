"""Converts JSON to values and back without loss: fields that are not translated stay byte-equal.

Strings are ``str``, integers ``int``; numbers with a point or an exponent are ``Decimal`` and are
encoded as they were read (``1.10``, ``1E5``). Floats are never used. The order of keys is kept.

msgspec decodes and encodes, because it is ten times as fast as any stricter library. It silently keeps
the last of two equal keys and reads ``-0`` as 0. So the decoded value is encoded again and compared with
the input. If they differ by more than whitespace, simplejson decodes the text, and its result counts.

In a large text, long lists become ``Rows``: they are decoded and encoded one slice at a time. The values
and bytes are the same.
"""

from __future__ import annotations

import io
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple, Self

import msgspec
import simplejson

from gateway.payloads.compressed_buffer import CompressedBuffer, iter_windows
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence, LazySequence, MappedSequence

LARGE_BYTES = 256 * 1024
"""Larger texts are decoded in slices, and processed in a thread instead of the event loop."""

LONG_LISTS = frozenset({"payments", "update_payments", "remove_payments", "entries"})
"""Fields whose lists may be very long: the documents set no maximum of payments in a batch."""

MAX_DEPTH = 64
"""Maximum nesting of objects and arrays; the documents' deepest body has five levels."""

MAX_DIGITS = 4300
"""Maximum digits of a number when written out: Python's own limit for ``int``."""


class JsonError(Exception):
    """The bytes are not JSON, or JSON that cannot be kept exactly.

    The message has the reason, but never the input.
    """


class ExactDecimal(Decimal):
    """A ``Decimal`` that is written with the text it was read from."""

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._text,)


def loads(
    data: bytes | CompressedBuffer,
    packed_lists: Collection[str] = (),
    max_memory_bytes: int | None = None,
) -> Any:
    """Decode a JSON text, UTF-8 with or without a byte order mark; raises JsonError.

    Also refused: objects with a duplicate key, ``NaN`` and ``Infinity``, lone surrogates, more than
    ``MAX_DEPTH`` levels or ``MAX_DIGITS`` digits. ``-0`` becomes 0. Long lists in the fields
    ``packed_lists`` become ``Rows``. ``max_memory_bytes`` bounds the memory of a text that cannot be
    decoded in slices (``estimate_memory_bytes``).
    """
    if packed_lists and len(data) > LARGE_BYTES:
        with suppress(NotSliceableError):  # the decoding of the whole text below reports the error
            return loads_in_slices(data, packed_lists)
    if max_memory_bytes is not None and estimate_memory_bytes(data) > max_memory_bytes:
        raise JsonError("too many values")
    reason, value = _decode(bytes(data))
    if reason:  # raised outside the except block, because the cause's text holds the input
        raise JsonError(reason)
    return value


def loads_in_slices(data: bytes | CompressedBuffer, packed_lists: Collection[str]) -> Any:
    """Like ``loads``, but never holds more than ``SLICE_BYTES`` of values at once.

    Raises NotSliceableError.
    """
    return _SliceReader(data, packed_lists).read_document()


VALUE_BYTES = 80
"""Estimated memory of one value, in addition to its text."""

SLICE_BYTES = VALUE_BYTES * LARGE_BYTES
"""Estimated memory of the values of a text of ``LARGE_BYTES``, which needs no check for room."""


def estimate_memory_bytes(data: bytes | CompressedBuffer) -> int:
    """Estimate the memory that the values of a JSON text need, without parsing it.

    Every value but the first follows a comma or opens an array or object, so that counting these bytes
    gives an upper bound. A hostile body is refused before it is parsed.
    """
    if isinstance(data, CompressedBuffer):
        return sum(estimate_memory_bytes(bytes(window)) for window in data.iter_windows())
    return VALUE_BYTES * sum(map(data.count, (b",", b"[", b"{")))


def loads_trusted(text: str) -> Any:
    """Like ``loads``, but without checks, for a text that ``dumps`` or ``dumps_trusted`` made."""
    return _READER.decode(text)


def dumps(value: Any) -> bytes:
    """Encode as compact, unescaped UTF-8 JSON; raises TypeError for other values, such as floats."""
    _check_encodable(value)
    return _encode(value, _CHECKED)


def dumps_trusted(value: Any) -> bytes:
    """Like ``dumps``, but without the check, which takes longer than the encoding."""
    return _encode(value, _TRUSTED)


def dumps_chunks(value: Any) -> list[bytes]:
    """Like ``dumps``, but returns chunks, because joining them would hold a second copy."""
    _check_encodable(value)
    return [*_iter_encoded(value, _CHECKED)]


def dumps_compressed(value: Any) -> CompressedBuffer:
    """Like ``dumps``, but compresses the text while it is produced."""
    _check_encodable(value)
    return CompressedBuffer.from_chunks(_iter_encoded(value, _CHECKED))


def iterdumps(value: Any) -> Iterator[bytes]:
    """Like ``dumps_trusted``, but yields one slice of rows at a time."""
    return _iter_encoded(value, _TRUSTED)


def iterdumps_canonical(value: Any) -> Iterator[bytes]:
    """Like ``iterdumps``, but with sorted fields, for digests."""
    return _iter_encoded(value, _CANONICAL)


def _encode(value: Any, options: _EncodeOptions) -> bytes:
    try:
        return options.encoder.encode(value)
    except _HasRowsError:
        buffer = io.BytesIO()
        buffer.writelines(_iter_encoded_slices(value, options))
        return buffer.getvalue()


def _iter_encoded(value: Any, options: _EncodeOptions) -> Iterator[bytes]:
    try:
        yield options.encoder.encode(value)
    except _HasRowsError:
        yield from _iter_encoded_slices(value, options)


def _iter_encoded_slices(value: Any, options: _EncodeOptions) -> Iterator[bytes]:
    encoder = options.encoder
    if isinstance(value, LazySequence):
        comma = b""
        yield b"["
        for rows in value.iterate_slices():
            if options.checks_rows:
                _check_encodable(rows)
            yield comma + encoder.encode(rows)[1:-1]
            comma = b","
        yield b"]"
    elif isinstance(value, dict):
        comma = b"{"
        for name in sorted(value) if options.sorts_fields else value:
            yield b"%b%b:" % (comma, encoder.encode(name))
            yield from _iter_encoded(value[name], options)
            comma = b","
        yield b"}"
    else:
        comma = b"["
        for item in value:
            yield comma
            yield from _iter_encoded(item, options)
            comma = b","
        yield b"]"


def has_rows(value: Any) -> bool:
    """Return whether a value, or an object in it, contains ``Rows``."""
    if not isinstance(value, dict):
        return isinstance(value, LazySequence)
    for item in value.values():  # noqa: SIM110 - any() would add a generator
        # Types are tested first: this runs for every response, and a call for each string is slow.
        if type(item) not in _SHORT and has_rows(item):
            return True
    return False


class _HasRowsError(Exception):
    """The value contains ``Rows``, so it must be encoded in slices."""


def _encode_custom_value(value: Any) -> msgspec.Raw:
    """Encode the types that msgspec does not support."""
    if isinstance(value, ExactDecimal):
        return msgspec.Raw(str(value).encode())
    if isinstance(value, LazySequence):
        raise _HasRowsError
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def _decode(data: bytes) -> tuple[str, Any]:
    try:
        value = _decode_fast(data)
    except _NeedsStrictDecode:
        reason, value = _decode_strict(data)
        if reason:
            return reason, None
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        return f"nested deeper than {MAX_DEPTH}", value
    return "", value


def _decode_fast(data: bytes) -> Any:
    """Decode a text whose value would be encoded to the same text; raises _NeedsStrictDecode."""
    try:
        value = _READER.decode(data)
        written = _WRITER.encode(value)
    except (ValueError, ArithmeticError, RecursionError):  # a DecodeError is a ValueError, too
        raise _NeedsStrictDecode from None
    # Duplicate keys and every other loss make the encoded text shorter, and nothing makes it longer.
    # So removing whitespace inside of strings too cannot hide a difference.
    if written != data and written.translate(None, _WHITESPACE) != data.translate(
        None, _WHITESPACE
    ):
        raise _NeedsStrictDecode
    return value


def _decode_strict(data: bytes) -> tuple[str, Any]:
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        if text.startswith(("\ufeff", "\xef\xbb\xbf")):  # simplejson would skip a second one too
            return "not JSON: line 1 column 1", None
        value = _DECODER.decode(text)
        if b"\\ud" in data or b"\\uD" in data:
            _WRITER.encode(value)
    except UnicodeDecodeError:
        return "not UTF-8", None
    except UnicodeEncodeError:
        return "half of a surrogate pair", None
    except simplejson.JSONDecodeError as error:
        return f"not JSON: line {error.lineno} column {error.colno}", None
    except RecursionError:
        return f"nested deeper than {MAX_DEPTH}", None
    except (ValueError, ArithmeticError):
        return f"a number of more than {MAX_DIGITS} digits", None
    except _DuplicateKeyError as error:
        return f"the key {error.key[:60]!r} twice in one object", None
    return "", value


def _is_deeper(value: Any, max_depth: int) -> bool:
    """Return whether a decoded value is nested deeper than ``max_depth``."""
    if type(value) not in _READ_NESTS:
        return False
    if not max_depth:
        return True
    for item in value.values() if type(value) is dict else value:
        if type(item) in _READ_NESTS and _is_deeper(item, max_depth - 1):
            return True
    return False


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen_keys: set[str] = set()
        for key, _ in pairs:
            if key in seen_keys:
                raise _DuplicateKeyError(key)
            seen_keys.add(key)
    return fields


def _parse_number(text: str) -> Decimal:
    number = Decimal(text)
    # 1E999999999 is short to send, but a gigabyte when it is written out.
    if len(text) > MAX_DIGITS or abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError
    return number if str(number) == text else ExactDecimal(text)


_DECIMALS = {Decimal, ExactDecimal}
_SIMPLE = {str, int, bool, type(None)}
_PLAIN = _SIMPLE | {CompressedSequence, MappedSequence}
"""Types that need no check before they are encoded."""
_READ_NESTS = {dict, list}
_NESTS = _READ_NESTS | {tuple}
_SHORT = _SIMPLE | _DECIMALS | {list, tuple}
"""Types in which ``has_rows`` does not search."""


def _check_encodable(value: Any) -> None:
    """Raise TypeError if the value cannot be encoded as JSON."""
    if flaw := _find_flaw((value,), MAX_DEPTH):
        raise TypeError(flaw)


def _find_flaw(values: Iterable[Any], max_depth: int) -> str:
    """Return the reason that values cannot be encoded as JSON, or an empty string.

    msgspec silently encodes floats, bytes, dates, NaN and numeric keys, and has no option against it.
    """
    for item in values:
        kind = type(item)
        if kind is str or kind in _PLAIN:  # nearly all values are strings
            continue
        if kind in _NESTS:
            if not max_depth:
                return f"nested deeper than {MAX_DEPTH}"
            if kind is dict and _has_non_text_key(item):
                return "a key that is not text"
            if flaw := _find_flaw(item.values() if kind is dict else item, max_depth - 1):
                return flaw
        elif kind not in _DECIMALS:
            return f"not a JSON value: {kind.__name__}"
        elif not item.is_finite():
            return "not a JSON value: a number that is none"
    return ""


def _has_non_text_key(value: dict[Any, Any]) -> bool:
    for key in value:  # noqa: SIM110 - any() would add a generator
        if type(key) is not str:
            return True
    return False


_DECODER = simplejson.JSONDecoder(object_pairs_hook=_build_object, parse_float=_parse_number)
_READER = msgspec.json.Decoder(float_hook=_parse_number)
_WRITER = msgspec.json.Encoder(decimal_format="number", enc_hook=_encode_custom_value)
_WHITESPACE = b" \t\n\r"


class _EncodeOptions(NamedTuple):
    """How a value is encoded: whether its rows are checked, and whether fields are sorted."""

    encoder: msgspec.json.Encoder
    checks_rows: bool = False
    sorts_fields: bool = False


_TRUSTED = _EncodeOptions(_WRITER)
_CHECKED = _EncodeOptions(_WRITER, checks_rows=True)
_CANONICAL = _EncodeOptions(
    msgspec.json.Encoder(decimal_format="number", enc_hook=_encode_custom_value, order="sorted"),
    sorts_fields=True,
)


# Decoding of a large text, one window at a time

_MAX_LIST_DEPTH = 3
"""Maximum depth of the objects in which long lists are decoded in slices."""

_WHITESPACE_TEXT = _WHITESPACE.decode()
_ITEM_BOUNDARIES = ("},{", "}, {")


class NotSliceableError(Exception):
    """The text must be decoded at once: it is invalid, or too much of it is in no long list."""


class _NeedsStrictDecode(NotSliceableError):
    """The text is invalid, or may be, and needs the strict decoder."""


class _SliceReader:
    """Decodes an object and packs its long lists while they are decoded."""

    def __init__(self, data: bytes | CompressedBuffer, packs: Collection[str]) -> None:
        self._size = len(data)
        self._windows = iter_windows(data)
        self._packed_lists = packs
        self._decoded = 0
        self._decoder = getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0
        self._may_have_lone_surrogates = False

    def read_document(self) -> Any:
        """Decode the whole text; raises _NeedsStrictDecode."""
        if self._peek() != "{":
            raise _NeedsStrictDecode
        value = self._read_object(1)
        if self._peek():
            raise _NeedsStrictDecode
        if self._may_have_lone_surrogates:
            self._check_surrogates(value)
        if _is_deeper(value, MAX_DEPTH):
            raise _NeedsStrictDecode
        return value

    def _read_object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        self._position += 1
        if self._peek() == "}":
            self._position += 1
            return fields
        while True:
            if self._peek() != '"':
                raise _NeedsStrictDecode
            name = self._read_value()
            if name in fields:
                raise _NeedsStrictDecode
            self._skip(":")
            fields[name] = self._read_field(name, depth)
            if self._peek() == "}":
                self._position += 1
                return fields
            self._skip(",")

    def _read_field(self, name: str, depth: int) -> Any:
        first_character = self._peek()
        if first_character == "[" and name in self._packed_lists:
            rows = CompressedSequence(self._iter_rows(depth))
            return rows if len(rows) > SLICE_SIZE else [*rows]
        if first_character == "{" and depth < _MAX_LIST_DEPTH:
            return self._read_object(depth + 1)
        return self._read_value()

    def _iter_rows(self, depth: int) -> Iterator[Any]:
        """Yield the items of a list, checked against the limits of the whole text."""
        for items in self._iter_item_groups():
            if self._may_have_lone_surrogates:
                self._check_surrogates(items)
            if _is_deeper(items, MAX_DEPTH - depth):
                raise _NeedsStrictDecode
            yield from items

    def _iter_item_groups(self) -> Iterator[list[Any]]:
        self._position += 1
        if self._peek() == "]":
            self._position += 1
            return
        odd_until, single_count = -1, 0
        while True:
            if odd_until < self._decoded:
                if items := self._read_many_items():
                    yield items
                else:
                    odd_until = self._decoded  # the rest of the decoded text goes item by item
            self._peek()
            yield [self._read_value()]
            # Objects of the service are longer, in any formatting: this is a hostile body.
            if (single_count := single_count + 1) > LARGE_BYTES:
                raise _NeedsStrictDecode
            if self._peek() == "]":
                self._position += 1
                return
            self._skip(",")

    def _read_many_items(self) -> list[Any]:
        """Decode the items up to the last complete one in the decoded text, at once.

        Returns an empty list if there is none. If the boundary is inside of an item or a string, the
        text before it is not a valid list and is not used.
        """
        self._peek()
        end = max(self._text.rfind(boundary, self._position) for boundary in _ITEM_BOUNDARIES)
        if end < 0:
            return []
        items = f"[{self._text[self._position : end + 1]}]"
        with suppress(_NeedsStrictDecode):
            values = _decode_fast(items.encode())
            self._position = end + 2
            return values  # type: ignore[no-any-return] # it begins as a list
        try:
            values, end_position = _SCAN_VALUE(items, 0)
        except (StopIteration, ValueError, ArithmeticError, RecursionError, _DuplicateKeyError):
            return []
        if end_position < len(items):
            return []
        self._position = end + 2
        return values  # type: ignore[no-any-return] # it begins as a list

    def _check_surrogates(self, value: Any) -> None:
        try:
            for _ in _iter_encoded(value, _TRUSTED):
                pass
        except UnicodeEncodeError:
            raise _NeedsStrictDecode from None

    def _read_value(self) -> Any:
        """Decode the value at the current position."""
        while True:
            try:
                value, end = _SCAN_VALUE(self._text, self._position)
            except (StopIteration, ValueError, ArithmeticError, RecursionError, _DuplicateKeyError):
                end = None
            if end is not None and (end < len(self._text) or not self._has_more):
                self._position = end
                return value
            self._decode_more()

    def _peek(self) -> str:
        """Skip whitespace and return the next character; empty at the end."""
        while True:
            while self._position < len(self._text):
                if (character := self._text[self._position]) not in _WHITESPACE_TEXT:
                    return character
                self._position += 1
            if not self._has_more:
                return ""
            self._decode_more()

    def _skip(self, character: str) -> None:
        if self._peek() != character:
            raise _NeedsStrictDecode
        self._position += 1

    @property
    def _has_more(self) -> bool:
        return self._decoded < self._size

    def _decode_more(self) -> None:
        """Decode another window, or double the text if one window was not enough."""
        if not self._has_more:
            raise _NeedsStrictDecode
        remaining_text, new_text = self._text[self._position :], ""
        while self._has_more and (not new_text or len(new_text) < len(remaining_text)):
            window = next(self._windows)
            self._decoded += len(window)
            try:
                new_text += self._decoder.decode(window, final=not self._has_more)
            except UnicodeDecodeError:
                raise _NeedsStrictDecode from None
        self._text, self._position = remaining_text + new_text, 0
        # A value longer than a window is decoded again with each window, so its cost must be bounded.
        if (
            len(self._text) > LARGE_BYTES
            and estimate_memory_bytes(self._text.encode()) > SLICE_BYTES
        ):
            raise _NeedsStrictDecode
        self._may_have_lone_surrogates = (
            self._may_have_lone_surrogates or "\\ud" in self._text or "\\uD" in self._text
        )


_SCAN_VALUE = _DECODER.scan_once
