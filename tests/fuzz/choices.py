"""Turns bytes into choices, so that a fuzzer's finding can be repeated without the fuzzer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

One = TypeVar("One")


class Choices:
    """Past the end of the bytes every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def choose_number(self, below: int) -> int:
        size = 1 if below <= 256 else 2
        taken = self._data[self._place : self._place + size]
        self._place += size
        return int.from_bytes(taken, "big") % below

    def choose(self, options: Sequence[One]) -> One:
        return options[self.choose_number(len(options))]

    def take_rest(self) -> bytes:
        return self._data[self._place :]
