"""JSON values with exact numbers, which are written as they were read."""

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, Self

import msgspec

MAX_DIGITS = 4300
"""Maximum digits of a number when written out: Python's own limit for ``int``."""


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

    # ``Decimal`` pickles by value, which would lose the text.
    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._text,)


def parse_number(text: str) -> Decimal:
    number = Decimal(text)
    # 1E999999999 is short to send, but a gigabyte when it is written out.
    if len(text) > MAX_DIGITS or abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError
    # A plain ``Decimal`` where possible: it needs no custom hook when it is encoded.
    return number if str(number) == text else ExactDecimal(text)


def encode_exact_decimal(value: Any) -> msgspec.Raw:
    """Encodes the only decoded type that msgspec does not support; raises TypeError for others."""
    if isinstance(value, ExactDecimal):
        return msgspec.Raw(str(value).encode())
    raise TypeError(f"not a JSON value: {type(value).__name__}")


loads_trusted: Callable[[str | bytes], Any] = msgspec.json.Decoder(float_hook=parse_number).decode
"""Decodes a text of this program, without checks."""

encode_plain_value: Callable[[Any], bytes] = msgspec.json.Encoder(
    decimal_format="number", enc_hook=encode_exact_decimal
).encode
"""Encodes a value that was decoded, or consists of the same types."""


@cache
def compile_field_decoder(name: str) -> Callable[[bytes], list[Any]]:
    """Compiles a decoder like ``loads_trusted`` of one field of the objects in a list.

    Each is in the field ``value`` of a result, and None in an object without the field.
    """
    row = msgspec.defstruct("Row", [("value", Any, None)], rename={"value": name})
    return msgspec.json.Decoder(list[row], float_hook=parse_number).decode  # type: ignore[valid-type]


class DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def build_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object; raises DuplicateKeyError."""
    fields = dict(pairs)
    # Parsers differ in which of two equal keys they keep, and a guess could pay the wrong amount.
    if len(fields) != len(pairs):
        seen_keys: set[str] = set()
        for key, _ in pairs:
            if key in seen_keys:
                raise DuplicateKeyError(key)
            seen_keys.add(key)
    return fields
