"""How many there are of what, in words."""

from __future__ import annotations


def pluralize(number: int, one: str, more: str = "") -> str:
    """``1 key``, ``2 keys``; ``more`` where the plural is not made with an s."""
    return f"{number} {one if number == 1 else more or f'{one}s'}"
