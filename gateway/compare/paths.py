"""Paths to values in an answer.

A *path* is a tuple of keys and indices, formatted as ``payments[3].sourceAmount``. Its *normal form*
is ``payments[].sourceAmount``: the same for all items of a list, and for all keys that are ids.
Status and headers have paths too: ``@status`` and ``@header.content-type``. The whole body is ``$``.
"""

import re
from collections.abc import Iterator
from functools import lru_cache, reduce

Path = tuple[str | int, ...]

BODY_PATH = "$"


class PseudoKey(str):
    """A path part outside the body, so that a body key ``@status`` is not confused with it."""

    __slots__ = ()


STATUS_PATH: Path = (PseudoKey("@status"),)

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_OBJECT_ID = re.compile(r"[A-Z]{1,2}-[A-Za-z0-9]{1,64}")
_PATH_PART = re.compile(r"\[(?P<index>\d+)\]|(?P<dot>\.)?(?P<key>[^.\[\]]+)")


def build_header_path(name: str) -> Path:
    return (PseudoKey("@header"), PseudoKey(name))


def format_path(path: Path) -> str:
    """Formats a path with its indices: ``payments[3].sourceAmount``."""
    parts = (f"[{part}]" if isinstance(part, int) else _format_key(part) for part in path)
    return reduce(_append_path_text, parts, BODY_PATH)


def normalize_path(path: Path) -> str:
    """Formats a path without indices: ``payments[].sourceAmount``."""
    return reduce(append_to_path, path, BODY_PATH)


def append_to_path(normal_path: str, part: str | int) -> str:
    """Returns the normal form of a key or item directly below another normal form."""
    if isinstance(part, int):
        return _append_path_text(normal_path, "[]")
    # Ids that are keys would make a path of their own for each object.
    return _append_path_text(
        normal_path, "{id}" if _OBJECT_ID.fullmatch(part) else _format_key(part)
    )


def iter_parent_paths(normal_path: str) -> Iterator[str]:
    """Yields the normal forms that contain this one, from the nearest to the whole body."""
    parts = re.findall(r"""\["[^"]*"\]|\[\]|[^.\[\]]+""", normal_path)
    if normal_path != BODY_PATH and not normal_path.startswith("@"):
        for end in range(len(parts) - 1, -1, -1):
            yield reduce(_append_path_text, parts[:end], BODY_PATH)


def _append_path_text(prefix: str, suffix: str) -> str:
    if prefix == BODY_PATH:
        return suffix
    return f"{prefix}{suffix}" if suffix.startswith("[") else f"{prefix}.{suffix}"


def _format_key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) or isinstance(key, PseudoKey) else f'["{key}"]'


def parse_scenario_path(text: str) -> Path:
    """Parses a path as scenarios write it, ``payments[0].id``; raises ValueError."""
    parts: list[str | int] = []
    position = 0
    while position < len(text) or not parts:
        match = _PATH_PART.match(text, position)
        if match is None or (match["key"] and bool(match["dot"]) != bool(parts)):
            raise ValueError("not a path: write it like recipient.id or payments[0].id")
        parts.append(int(match["index"]) if match["index"] else match["key"])
        position = match.end()
    return tuple(parts)


@lru_cache(maxsize=1024)
def compile_path_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a rule's path to a pattern for normal forms: ``*`` is one key, ``**`` any parts."""
    # The longer wildcards first: `**` would otherwise be two of `*`.
    parts = re.split(r"(\*\*\.|\.\*\*$|\*\*|\*)", pattern)
    return re.compile("".join(_WILDCARDS.get(part, re.escape(part)) for part in parts))


_WILDCARDS = {"**.": r"(?:.+\.)?", ".**": r"(?:[.\[].*)?", "**": ".*", "*": r"[^.\[\]]+"}
