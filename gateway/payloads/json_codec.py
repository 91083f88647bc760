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

LARGE = 256 * 1024
"""Larger texts are decoded in slices, and processed in a thread instead of the event loop."""

LONG = frozenset({"payments", "update_payments", "remove_payments", "entries"})
"""Fields whose lists may be very long: the documents set no maximum of payments in a batch."""

DEPTH = 64
"""Maximum nesting of objects and arrays; the documents' deepest body has five levels."""

DIGITS = 4300
"""Maximum digits of a number when written out: Python's own limit for ``int``."""


class Unreadable(Exception):
    """The bytes are not JSON, or JSON that cannot be kept exactly.

    The message has the reason, but never the input.
    """


class Number(Decimal):
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


def read(
    data: bytes | CompressedBuffer, packs: Collection[str] = (), most_bytes: int | None = None
) -> Any:
    """Decode a JSON text, UTF-8 with or without a byte order mark; raises JsonError.

    Also refused: objects with a duplicate key, ``NaN`` and ``Infinity``, lone surrogates, more than
    ``MAX_DEPTH`` levels or ``MAX_DIGITS`` digits. ``-0`` becomes 0. Long lists in the fields
    ``packed_lists`` become ``Rows``. ``max_memory_bytes`` bounds the memory of a text that cannot be
    decoded in slices (``estimate_memory_bytes``).
    """
    if packs and len(data) > LARGE:
        with suppress(Unsliced):  # the decoding of the whole text below reports the error
            return loads_in_slices(data, packs)
    if most_bytes is not None and estimate_memory_bytes(data) > most_bytes:
        raise Unreadable("too many values")
    reason, value = _read(bytes(data))
    if reason:  # raised outside the except block, because the cause's text holds the input
        raise Unreadable(reason)
    return value


def loads_in_slices(data: bytes | CompressedBuffer, packs: Collection[str]) -> Any:
    """Like ``loads``, but never holds more than ``SLICE_BYTES`` of values at once.

    Raises NotSliceableError.
    """
    return _BySlices(data, packs).read()


VALUE_BYTES = 80
"""Estimated memory of one value, in addition to its text."""

SLICE_BYTES = VALUE_BYTES * LARGE
"""Estimated memory of the values of a text of ``LARGE_BYTES``, which needs no check for room."""


def estimate_memory_bytes(data: bytes | CompressedBuffer) -> int:
    """Estimate the memory that the values of a JSON text need, without parsing it.

    Every value but the first follows a comma or opens an array or object, so that counting these bytes
    gives an upper bound. A hostile body is refused before it is parsed.
    """
    if isinstance(data, CompressedBuffer):
        return sum(estimate_memory_bytes(bytes(window)) for window in data.windows())
    return VALUE_BYTES * sum(map(data.count, (b",", b"[", b"{")))


def loads_trusted(text: str) -> Any:
    """Like ``loads``, but without checks, for a text that ``dumps`` or ``dumps_trusted`` made."""
    return _READER.decode(text)


def dumps(value: Any) -> bytes:
    """Encode as compact, unescaped UTF-8 JSON; raises TypeError for other values, such as floats."""
    _check(value)
    return _whole(value, _CHECKED)


def dumps_trusted(value: Any) -> bytes:
    """Like ``dumps``, but without the check, which takes longer than the encoding."""
    return _whole(value, _WRITTEN)


def dumps_chunks(value: Any) -> list[bytes]:
    """Like ``dumps``, but returns chunks, because joining them would hold a second copy."""
    _check(value)
    return [*_parts(value, _CHECKED)]


def dumps_compressed(value: Any) -> CompressedBuffer:
    """Like ``dumps``, but compresses the text while it is produced."""
    _check(value)
    return CompressedBuffer.of(_parts(value, _CHECKED))


def iterdumps(value: Any) -> Iterator[bytes]:
    """Like ``dumps_trusted``, but yields one slice of rows at a time."""
    return _parts(value, _WRITTEN)


def iterdumps_canonical(value: Any) -> Iterator[bytes]:
    """Like ``iterdumps``, but with sorted fields, for digests."""
    return _parts(value, _ORDERED)


def _whole(value: Any, manner: _Manner) -> bytes:
    try:
        return manner.encoder.encode(value)
    except _InSlices:
        whole = io.BytesIO()
        whole.writelines(_sliced(value, manner))
        return whole.getvalue()


def _parts(value: Any, manner: _Manner) -> Iterator[bytes]:
    try:
        yield manner.encoder.encode(value)
    except _InSlices:
        yield from _sliced(value, manner)


def _sliced(value: Any, manner: _Manner) -> Iterator[bytes]:
    encoder = manner.encoder
    if isinstance(value, LazySequence):
        comma = b""
        yield b"["
        for some in value.iterate_slices():
            if manner.checks:
                _check(some)
            yield comma + encoder.encode(some)[1:-1]
            comma = b","
        yield b"]"
    elif isinstance(value, dict):
        comma = b"{"
        for name in sorted(value) if manner.sorts else value:
            yield b"%b%b:" % (comma, encoder.encode(name))
            yield from _parts(value[name], manner)
            comma = b","
        yield b"}"
    else:
        comma = b"["
        for one in value:
            yield comma
            yield from _parts(one, manner)
            comma = b","
        yield b"]"


def has_rows(value: Any) -> bool:
    """Return whether a value, or an object in it, contains ``Rows``."""
    if not isinstance(value, dict):
        return isinstance(value, LazySequence)
    for one in value.values():  # noqa: SIM110 - any() would add a generator
        # Types are tested first: this runs for every response, and a call for each string is slow.
        if type(one) not in _SHORT and has_rows(one):
            return True
    return False


class _InSlices(Exception):
    """The value contains ``Rows``, so it must be encoded in slices."""


def _otherwise(value: Any) -> msgspec.Raw:
    """Encode the types that msgspec does not support."""
    if isinstance(value, Number):
        return msgspec.Raw(str(value).encode())
    if isinstance(value, LazySequence):
        raise _InSlices
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def _read(data: bytes) -> tuple[str, Any]:
    try:
        value = _as_written(data)
    except _Odd:
        reason, value = _strictly(data)
        if reason:
            return reason, None
    if data.count(b"{") + data.count(b"[") > DEPTH and _is_deeper(value, DEPTH):
        return f"nested deeper than {DEPTH}", value
    return "", value


def _as_written(data: bytes) -> Any:
    """Decode a text whose value would be encoded to the same text; raises _NeedsStrictDecode."""
    try:
        value = _READER.decode(data)
        written = _WRITER.encode(value)
    except (ValueError, ArithmeticError, RecursionError):  # a DecodeError is a ValueError, too
        raise _Odd from None
    # Duplicate keys and every other loss make the encoded text shorter, and nothing makes it longer.
    # So removing whitespace inside of strings too cannot hide a difference.
    if written != data and written.translate(None, _BLANKS) != data.translate(None, _BLANKS):
        raise _Odd
    return value


def _strictly(data: bytes) -> tuple[str, Any]:
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
        return f"nested deeper than {DEPTH}", None
    except (ValueError, ArithmeticError):
        return f"a number of more than {DIGITS} digits", None
    except _Twice as error:
        return f"the key {error.key[:60]!r} twice in one object", None
    return "", value


def _is_deeper(value: Any, most: int) -> bool:
    """Return whether a decoded value is nested deeper than ``max_depth``."""
    if type(value) not in _READ_NESTS:
        return False
    if not most:
        return True
    for one in value.values() if type(value) is dict else value:
        if type(one) in _READ_NESTS and _is_deeper(one, most - 1):
            return True
    return False


class _Twice(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Twice(key)
            seen.add(key)
    return read


def _number(text: str) -> Decimal:
    number = Decimal(text)
    # 1E999999999 is short to send, but a gigabyte when it is written out.
    if len(text) > DIGITS or abs(number.adjusted()) > DIGITS:
        raise ValueError
    return number if str(number) == text else Number(text)


_DECIMALS = {Decimal, Number}
_SIMPLE = {str, int, bool, type(None)}
_PLAIN = _SIMPLE | {CompressedSequence, MappedSequence}
"""Types that need no check before they are encoded."""
_READ_NESTS = {dict, list}
_NESTS = _READ_NESTS | {tuple}
_SHORT = _SIMPLE | _DECIMALS | {list, tuple}
"""Types in which ``has_rows`` does not search."""


def _check(value: Any) -> None:
    """Raise TypeError if the value cannot be encoded as JSON."""
    if flaw := _flaw((value,), DEPTH):
        raise TypeError(flaw)


def _flaw(those: Iterable[Any], deep: int) -> str:
    """Return the reason that values cannot be encoded as JSON, or an empty string.

    msgspec silently encodes floats, bytes, dates, NaN and numeric keys, and has no option against it.
    """
    for one in those:
        kind = type(one)
        if kind is str or kind in _PLAIN:  # nearly all values are strings
            continue
        if kind in _NESTS:
            if not deep:
                return f"nested deeper than {DEPTH}"
            if kind is dict and _odd_key(one):
                return "a key that is not text"
            if flaw := _flaw(one.values() if kind is dict else one, deep - 1):
                return flaw
        elif kind not in _DECIMALS:
            return f"not a JSON value: {kind.__name__}"
        elif not one.is_finite():
            return "not a JSON value: a number that is none"
    return ""


def _odd_key(value: dict[Any, Any]) -> bool:
    for key in value:  # noqa: SIM110 - any() would add a generator
        if type(key) is not str:
            return True
    return False


_DECODER = simplejson.JSONDecoder(object_pairs_hook=_object, parse_float=_number)
_READER = msgspec.json.Decoder(float_hook=_number)
_WRITER = msgspec.json.Encoder(decimal_format="number", enc_hook=_otherwise)
_BLANKS = b" \t\n\r"


class _Manner(NamedTuple):
    """How a value is encoded: whether its rows are checked, and whether fields are sorted."""

    encoder: msgspec.json.Encoder
    checks: bool = False
    sorts: bool = False


_WRITTEN = _Manner(_WRITER)
_CHECKED = _Manner(_WRITER, checks=True)
_ORDERED = _Manner(
    msgspec.json.Encoder(decimal_format="number", enc_hook=_otherwise, order="sorted"), sorts=True
)


# Decoding of a large text, one window at a time

_HEADS = 3
"""Maximum depth of the objects in which long lists are decoded in slices."""

_BLANK = _BLANKS.decode()
_BETWEEN_ITEMS = ("},{", "}, {")


class Unsliced(Exception):
    """The text must be decoded at once: it is invalid, or too much of it is in no long list."""


class _Odd(Unsliced):
    """The text is invalid, or may be, and needs the strict decoder."""


class _BySlices:
    """Decodes an object and packs its long lists while they are decoded."""

    def __init__(self, data: bytes | CompressedBuffer, packs: Collection[str]) -> None:
        self._size = len(data)
        self._windows = iter_windows(data)
        self._packs = packs
        self._decoded = 0
        self._decoder = getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._may_be_halves = False

    def read(self) -> Any:
        """Decode the whole text; raises _NeedsStrictDecode."""
        if self._next() != "{":
            raise _Odd
        value = self._object(1)
        if self._next():
            raise _Odd
        if self._may_be_halves:
            self._refuse_halves(value)
        if _is_deeper(value, DEPTH):
            raise _Odd
        return value

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return found
        while True:
            if self._next() != '"':
                raise _Odd
            name = self._any()
            if name in found:
                raise _Odd
            self._pass(":")
            found[name] = self._of(name, depth)
            if self._next() == "}":
                self._at += 1
                return found
            self._pass(",")

    def _of(self, name: str, depth: int) -> Any:
        begins = self._next()
        if begins == "[" and name in self._packs:
            rows = CompressedSequence(self._rows(depth))
            return rows if len(rows) > SLICE_SIZE else [*rows]
        if begins == "{" and depth < _HEADS:
            return self._object(depth + 1)
        return self._any()

    def _rows(self, depth: int) -> Iterator[Any]:
        """Yield the items of a list, checked against the limits of the whole text."""
        for some in self._items():
            if self._may_be_halves:
                self._refuse_halves(some)
            if _is_deeper(some, DEPTH - depth):
                raise _Odd
            yield from some

    def _items(self) -> Iterator[list[Any]]:
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return
        odd_until, alone = -1, 0
        while True:
            if odd_until < self._decoded:
                if some := self._many():
                    yield some
                else:
                    odd_until = self._decoded  # the rest of the decoded text goes item by item
            self._next()
            yield [self._any()]
            # Objects of the service are longer, in any formatting: this is a hostile body.
            if (alone := alone + 1) > LARGE:
                raise _Odd
            if self._next() == "]":
                self._at += 1
                return
            self._pass(",")

    def _many(self) -> list[Any]:
        """Decode the items up to the last complete one in the decoded text, at once.

        Returns an empty list if there is none. If the boundary is inside of an item or a string, the
        text before it is not a valid list and is not used.
        """
        self._next()
        end = max(self._text.rfind(between, self._at) for between in _BETWEEN_ITEMS)
        if end < 0:
            return []
        items = f"[{self._text[self._at : end + 1]}]"
        with suppress(_Odd):
            some = _as_written(items.encode())
            self._at = end + 2
            return some  # type: ignore[no-any-return] # it begins as a list
        try:
            some, read = _SCAN(items, 0)
        except (StopIteration, ValueError, ArithmeticError, RecursionError, _Twice):
            return []
        if read < len(items):
            return []
        self._at = end + 2
        return some  # type: ignore[no-any-return] # it begins as a list

    def _refuse_halves(self, value: Any) -> None:
        try:
            for _ in _parts(value, _WRITTEN):
                pass
        except UnicodeEncodeError:
            raise _Odd from None

    def _any(self) -> Any:
        """Decode the value at the current position."""
        while True:
            try:
                value, end = _SCAN(self._text, self._at)
            except (StopIteration, ValueError, ArithmeticError, RecursionError, _Twice):
                end = None
            if end is not None and (end < len(self._text) or not self._has_more):
                self._at = end
                return value
            self._more()

    def _next(self) -> str:
        """Skip whitespace and return the next character; empty at the end."""
        while True:
            while self._at < len(self._text):
                if (character := self._text[self._at]) not in _BLANK:
                    return character
                self._at += 1
            if not self._has_more:
                return ""
            self._more()

    def _pass(self, character: str) -> None:
        if self._next() != character:
            raise _Odd
        self._at += 1

    @property
    def _has_more(self) -> bool:
        return self._decoded < self._size

    def _more(self) -> None:
        """Decode another window, or double the text if one window was not enough."""
        if not self._has_more:
            raise _Odd
        left, new = self._text[self._at :], ""
        while self._has_more and (not new or len(new) < len(left)):
            window = next(self._windows)
            self._decoded += len(window)
            try:
                new += self._decoder.decode(window, final=not self._has_more)
            except UnicodeDecodeError:
                raise _Odd from None
        self._text, self._at = left + new, 0
        # A value longer than a window is decoded again with each window, so its cost must be bounded.
        if len(self._text) > LARGE and estimate_memory_bytes(self._text.encode()) > SLICE_BYTES:
            raise _Odd
        self._may_be_halves = self._may_be_halves or "\\ud" in self._text or "\\uD" in self._text


_SCAN = _DECODER.scan_once
