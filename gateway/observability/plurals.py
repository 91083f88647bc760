"""Formats counts with singular and plural nouns."""

from __future__ import annotations


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """Formats ``1 key`` or ``2 keys``; ``plural`` is needed only for irregular plurals."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"
