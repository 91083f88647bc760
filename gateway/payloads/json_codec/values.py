"""Limits and number type that encoding and decoding share."""

from __future__ import annotations

from decimal import Decimal
from typing import Self

MAX_DEPTH = 64
"""Maximum nesting of objects and arrays; the documents' deepest body has five levels."""

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

    # ``Decimal`` copies and pickles by value, which would lose the text.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._text,)
