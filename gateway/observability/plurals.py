"""Formats counts with singular and plural nouns, lists of names, and times."""

from collections.abc import Collection
from datetime import datetime

MAX_NAMES = 3


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """Formats ``1 key`` or ``2 keys``; ``plural`` is needed only for irregular plurals."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def join_names(names: Collection[str]) -> str:
    """Joins the first names in alphabetical order, and counts the rest: ``a, b, c and 2 more``."""
    shown = ", ".join(sorted(names)[:MAX_NAMES])
    return shown + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def format_time(time: datetime | None) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}" if time else "-"
