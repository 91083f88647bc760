"""Paths to values in an answer.

A *path* is a tuple of keys and indices, formatted as ``payments[3].sourceAmount``. Its *normal form*
is ``payments[].sourceAmount``: the same for all items of a list, and for all keys that are ids.
Status and headers have paths too: ``@status`` and ``@header.content-type``. The whole body is ``$``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

Path = tuple[str | int, ...]

BODY = "$"
"""Normal form of the path to the whole body."""


class Outside(str):
    """A path part outside the body, so that a body key ``@status`` is not confused with it."""

    __slots__ = ()


STATUS: Path = (Outside("@status"),)

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ID = re.compile(r"[A-Z]{1,2}-[A-Za-z0-9]{1,64}")
_PART = re.compile(r"\[(?P<index>\d+)\]|(?P<dot>\.)?(?P<key>[^.\[\]]+)")


def header_path(name: str) -> Path:
    return (Outside("@header"), Outside(name))


def format_path(path: Path) -> str:
    """Formats a path with its indices: ``payments[3].sourceAmount``."""
    place = BODY
    for part in path:
        place = _below(place, f"[{part}]" if isinstance(part, int) else _spelled(part))
    return place


def normalize_path(path: Path) -> str:
    """Formats a path without indices: ``payments[].sourceAmount``."""
    place = BODY
    for part in path:
        place = append_to_path(place, part)
    return place


def append_to_path(place: str, part: str | int) -> str:
    """The normal form of a key or item directly below another normal form."""
    if isinstance(part, int):
        return _below(place, "[]")
    # Ids that are keys would make a path of their own for each object.
    return _below(place, "{id}" if _ID.fullmatch(part) else _spelled(part))


def iter_parent_paths(place: str) -> Iterator[str]:
    """Yields the normal forms that contain this one, from the nearest to the whole body."""
    parts = re.findall(r"""\["[^"]*"\]|\[\]|[^.\[\]]+""", place)
    if place != BODY and not place.startswith("@"):
        for end in range(len(parts) - 1, 0, -1):
            yield _joined(parts[:end])
        yield BODY


def _joined(parts: list[str]) -> str:
    place = BODY
    for part in parts:
        place = _below(place, part)
    return place


def _below(place: str, piece: str) -> str:
    if place == BODY:
        return piece
    return f"{place}{piece}" if piece.startswith("[") else f"{place}.{piece}"


def _spelled(key: str) -> str:
    return key if _PLAIN.fullmatch(key) or isinstance(key, Outside) else f'["{key}"]'


def parse_scenario_path(text: str) -> Path:
    """Parses a path as scenarios write it, ``payments[0].id``; raises ValueError."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or (found["key"] and bool(found["dot"]) != bool(parts)):
            raise ValueError(text)
        parts.append(int(found["index"]) if found["index"] else found["key"])
        at = found.end()
    if not parts:
        raise ValueError(text)
    return tuple(parts)


@lru_cache(maxsize=1024)
def compile_path_pattern(text: str) -> re.Pattern[str]:
    """Compiles a rule's path to a pattern for normal forms: ``*`` is one key, ``**`` any parts."""
    steps = re.split(r"(\*\*\.|\.\*\*$|\*\*|\*)", text)
    return re.compile("".join(_STEPS.get(step, re.escape(step)) for step in steps))


_STEPS = {"**.": r"(?:.+\.)?", ".**": r"(?:[.\[].*)?", "**": ".*", "*": r"[^.\[\]]+"}
