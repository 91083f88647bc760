"""JSON bytes to values and back, exactly: what is not translated leaves as it came.

Text is ``str``, whole numbers are ``int``, numbers with a point or an exponent are ``Decimal``
and are written as they were read (``1.10``, ``1E5``). Never a float. Key order is kept.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Self

import simplejson

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


def read(data: bytes) -> Any:
    """The value of one JSON text, UTF-8 with or without a byte order mark; raises Unreadable.

    Refused besides what is not JSON: an object with the same key twice, ``NaN`` and
    ``Infinity``, halves of surrogate pairs, more than ``DEPTH`` levels or ``DIGITS`` digits.
    ``-0`` becomes 0.
    """
    reason, value = _read(data)
    if reason:  # raised here and not where it was found: the cause's text holds the input
        raise Unreadable(reason)
    return value


def write(value: Any) -> bytes:
    """Compact JSON, UTF-8 and not escaped; raises TypeError for what is not JSON (a float)."""
    if flaw := _flaw(value):
        raise TypeError(flaw)
    return _ENCODER.encode(value).encode()


def _read(data: bytes) -> tuple[str, Any]:
    try:
        text = data.decode("utf-8-sig")
        if text.startswith(("\ufeff", "\xef\xbb\xbf")):  # simplejson would pass over these too
            return "not JSON: line 1 column 1", None
        value = _DECODER.decode(text)
        if b"\\ud" in data or b"\\uD" in data:
            _ENCODER.encode(value).encode()
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
    if data.count(b"{") + data.count(b"[") > DEPTH:
        return _flaw(value), value
    return "", value


class _Twice(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(next(key for key in read if keys.count(key) > 1))
    return read


def _number(text: str) -> Decimal:
    number = Decimal(text)
    # 1E999999999 is short to send, and a gigabyte as soon as someone writes it out.
    if len(text) > DIGITS or abs(number.adjusted()) > DIGITS:
        raise ValueError
    return number if str(number) == text else Number(text)


_LEAVES = {str, int, bool, type(None), Decimal, Number}
_NESTS = {dict, list, tuple}


def _flaw(value: Any) -> str:
    """What keeps a value from being written as JSON; empty where nothing does.

    simplejson writes floats, bytes and keys of any type without a word, and has no switch for it.
    Level by level and by the set of types, for that is several times faster than item by item.
    """
    level: list[Any] = [[value]]
    for _ in range(DEPTH + 1):
        below: list[Any] = []
        for nest in level:
            values = nest
            if type(nest) is dict:
                if set(map(type, nest)) - {str}:
                    return "a key that is not text"
                values = nest.values()
            if others := set(map(type, values)) - _LEAVES:
                if odd := others - _NESTS:
                    return f"not a JSON value: {odd.pop().__name__}"
                below += [item for item in values if type(item) in _NESTS]
        if not below:
            return ""
        level = below
    return f"nested deeper than {DEPTH}"


_DECODER = simplejson.JSONDecoder(object_pairs_hook=_object, parse_float=_number)
_ENCODER = simplejson.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    check_circular=False,  # _flaw has seen to that
    namedtuple_as_object=False,
)
