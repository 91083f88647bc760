"""Turns bytes into choices, so that a fuzzer's finding can be repeated without the fuzzer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Option = TypeVar("Option")


class Choices:
    """Chooses the first option once the bytes are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def choose_number(self, upper_bound: int) -> int:
        size = 1 if upper_bound <= 256 else 2
        chunk = self._data[self._position : self._position + size]
        self._position += size
        return int.from_bytes(chunk, "big") % upper_bound

    def choose(self, options: Sequence[Option]) -> Option:
        return options[self.choose_number(len(options))]

    def take_rest(self) -> bytes:
        return self._data[self._position :]
