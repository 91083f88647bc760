"""JSON bytes to values and back, exactly: what is not translated leaves as it came.

Text is ``str``, whole numbers are ``int``, numbers with a point or an exponent are ``Decimal``
and are written as they were read (``1.10``, ``1E5``). Never a float. Key order is kept.

msgspec reads and writes, ten times as fast as anything that is stricter. It keeps the last of two equal
keys and takes ``-0`` for 0, and says nothing: so what it read is held against what would be written of it,
and where the two differ by more than blanks simplejson reads the text again, and has the say.

Of a large text the long lists become ``Rows``: what was read and what is written is in hand a slice
at a time. The values are the same, and so are the bytes.
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
"""Bytes from which a text is read by slices, and worked on where it holds up nobody (``aside``)."""

LONG = frozenset({"payments", "update_payments", "remove_payments", "entries"})
"""The lists that may be very long: the documents set no bound to the payments of a batch."""

DEPTH = 64
"""How deep objects and arrays may be nested; the documents' deepest are nested five deep."""

DIGITS = 4300
"""How many digits a number may have, written out: as many as Python reads into an ``int``."""


class Unreadable(Exception):
    """Bytes that are not JSON, or JSON that cannot be kept exactly. Says why, never the input."""


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
    """The value of one JSON text, UTF-8 with or without a byte order mark; raises Unreadable.

    Refused besides what is not JSON: an object with the same key twice, ``NaN`` and
    ``Infinity``, halves of surrogate pairs, more than ``DEPTH`` levels or ``DIGITS`` digits.
    ``-0`` becomes 0. ``packs`` are the fields whose lists are ``Rows`` where they are long.
    ``most_bytes`` bounds the memory of what cannot be read in slices (``estimate_memory_bytes``).
    """
    if packs and len(data) > LARGE:
        with suppress(Unsliced):  # what is wrong with it is told by whoever reads all of it
            return loads_in_slices(data, packs)
    if most_bytes is not None and estimate_memory_bytes(data) > most_bytes:
        raise Unreadable("too many values")
    reason, value = _read(bytes(data))
    if reason:  # raised here and not where it was found: the cause's text holds the input
        raise Unreadable(reason)
    return value


def loads_in_slices(data: bytes | CompressedBuffer, packs: Collection[str]) -> Any:
    """Like ``read``, of a large text, but never holds more of it than ``SLICE_BYTES`` of values at once.

    Raises Unsliced.
    """
    return _BySlices(data, packs).read()


VALUE_BYTES = 80
"""What a value in a JSON text is reckoned to take in memory, beside the text."""

SLICE_BYTES = VALUE_BYTES * LARGE
"""The values that a text of ``LARGE`` bytes may take: what is read without asking whether there is room."""


def estimate_memory_bytes(data: bytes | CompressedBuffer) -> int:
    """Bytes that the values of a JSON text may take once they are read.

    Every value but the first follows a separator or opens an array or object, so that these are counted
    in the bytes: nothing is parsed before there is room for what it becomes.
    """
    if isinstance(data, CompressedBuffer):
        return sum(estimate_memory_bytes(bytes(window)) for window in data.windows())
    return VALUE_BYTES * sum(map(data.count, (b",", b"[", b"{")))


def loads_trusted(text: str) -> Any:
    """As ``read``, of a text that ``dumps`` or ``dumps_trusted`` made: there is nothing in it to look for."""
    return _READER.decode(text)


def dumps(value: Any) -> bytes:
    """Compact JSON, UTF-8 and not escaped; raises TypeError for what is not JSON (a float)."""
    _check(value)
    return _whole(value, _CHECKED)


def dumps_trusted(value: Any) -> bytes:
    """As ``dumps``, of values that are checked elsewhere: to look through them takes longer."""
    return _whole(value, _WRITTEN)


def dumps_chunks(value: Any) -> list[bytes]:
    """As ``dumps``, not put together: of a large value that would be one more of it."""
    _check(value)
    return [*_parts(value, _CHECKED)]


def dumps_compressed(value: Any) -> CompressedBuffer:
    """As ``dumps``, folded while it is made."""
    _check(value)
    return CompressedBuffer.of(_parts(value, _CHECKED))


def iterdumps(value: Any) -> Iterator[bytes]:
    """What ``dumps_trusted`` makes of a value, a slice of its rows at a time."""
    return _parts(value, _WRITTEN)


def iterdumps_canonical(value: Any) -> Iterator[bytes]:
    """The same, and the same for every order of an object's fields; to make digests of."""
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
    """Whether a value, or an object in it, has a list that is not in hand."""
    if not isinstance(value, dict):
        return isinstance(value, LazySequence)
    for one in value.values():  # noqa: SIM110 - for any it would be a generator more
        # By its type first: each answer is looked through, and to ask of a text takes longer.
        if type(one) not in _SHORT and has_rows(one):
            return True
    return False


class _InSlices(Exception):
    """There are Rows in it."""


def _otherwise(value: Any) -> msgspec.Raw:
    """What msgspec knows no way to write."""
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
    """The value of a text that says what would be written of it; raises _Odd for every other one."""
    try:
        value = _READER.decode(data)
        written = _WRITER.encode(value)
    except (ValueError, ArithmeticError, RecursionError):  # a DecodeError is a ValueError, too
        raise _Odd from None
    # A key twice, and all else that is lost in reading, makes what is written shorter, and nothing
    # makes it longer: that both have blanks within texts does not matter here.
    if written != data and written.translate(None, _BLANKS) != data.translate(None, _BLANKS):
        raise _Odd
    return value


def _strictly(data: bytes) -> tuple[str, Any]:
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        if text.startswith(("\ufeff", "\xef\xbb\xbf")):  # simplejson would pass over these too
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
    """Whether what was read is nested deeper: its values are JSON's."""
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
    # 1E999999999 is short to send, and a gigabyte as soon as someone writes it out.
    if len(text) > DIGITS or abs(number.adjusted()) > DIGITS:
        raise ValueError
    return number if str(number) == text else Number(text)


_DECIMALS = {Decimal, Number}
_SIMPLE = {str, int, bool, type(None)}
_PLAIN = _SIMPLE | {CompressedSequence, MappedSequence}
"""Of values that are what they are: nothing is to be looked for in them before they are written."""
_READ_NESTS = {dict, list}
_NESTS = _READ_NESTS | {tuple}
_SHORT = _SIMPLE | _DECIMALS | {list, tuple}
"""Of values that have no Rows in them, as far as ``has_rows`` looks."""


def _check(value: Any) -> None:
    """Raises TypeError."""
    if flaw := _flaw((value,), DEPTH):
        raise TypeError(flaw)


def _flaw(those: Iterable[Any], deep: int) -> str:
    """What keeps values from being written as JSON; empty where nothing does.

    msgspec writes floats, bytes, dates, NaN and keys that are numbers without a word, and has no switch for it.
    """
    for one in those:
        kind = type(one)
        if kind is str or kind in _PLAIN:  # nearly all are texts
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
    for key in value:  # noqa: SIM110 - for any it would be a generator more
        if type(key) is not str:
            return True
    return False


_DECODER = simplejson.JSONDecoder(object_pairs_hook=_object, parse_float=_number)
_READER = msgspec.json.Decoder(float_hook=_number)
_WRITER = msgspec.json.Encoder(decimal_format="number", enc_hook=_otherwise)
_BLANKS = b" \t\n\r"


class _Manner(NamedTuple):
    """How a value is written: whether its rows are looked through as the rest of it is, and in what
    order fields are.
    """

    encoder: msgspec.json.Encoder
    checks: bool = False
    sorts: bool = False


_WRITTEN = _Manner(_WRITER)
_CHECKED = _Manner(_WRITER, checks=True)
_ORDERED = _Manner(
    msgspec.json.Encoder(decimal_format="number", enc_hook=_otherwise, order="sorted"), sorts=True
)


# A large text, a window of it at a time

_HEADS = 3
"""How deep the objects are nested in which a long list is looked for."""

_BLANK = _BLANKS.decode()
_BETWEEN_ITEMS = ("},{", "}, {")


class Unsliced(Exception):
    """A text that has to be read at once: it is wrong, or has much that is in no long list."""


class _Odd(Unsliced):
    """What is better read at once: it is wrong, or may be."""


class _BySlices:
    """Reads an object of which the long lists are packed as they are read."""

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
        """Raises _Odd."""
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
        """The items of a list, none of which is yet beyond the bounds that the whole has."""
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
                    odd_until = self._decoded  # with what there is of the text: item by item
            self._next()
            yield [self._any()]
            # Objects of the service are longer, however they are written: this is something else.
            if (alone := alone + 1) > LARGE:
                raise _Odd
            if self._next() == "]":
                self._at += 1
                return
            self._pass(",")

    def _many(self) -> list[Any]:
        """The items from here to the last that is whole in what there is of the text, read at once.

        None where there is no such place. Where it was found within an item, or within a text, what is
        before it is no list, and is not taken for one.
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
        """The value that begins here."""
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
        """The next character that is not blank; none at the end."""
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
        """A window more of the text, or twice of what did not do."""
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
        # One value that takes more than a window, and is read again with each: its cost is bounded.
        if len(self._text) > LARGE and estimate_memory_bytes(self._text.encode()) > SLICE_BYTES:
            raise _Odd
        self._may_be_halves = self._may_be_halves or "\\ud" in self._text or "\\uD" in self._text


_SCAN = _DECODER.scan_once
