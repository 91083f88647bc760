"""Formats counts with singular and plural nouns."""

from __future__ import annotations


def pluralize(number: int, one: str, more: str = "") -> str:
    """Format ``1 key`` or ``2 keys``; ``plural`` is needed only for irregular plurals."""
    return f"{number} {one if number == 1 else more or f'{one}s'}"
