"""Finds the operation of the legacy interface that a request calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mappings import OPERATIONS, UNLISTED
from mappings.grammar import Vocabulary

READS = frozenset({"GET", "HEAD"})

IN_TEXT = re.compile(r"\b(?:OP|[RBPTA])-[A-Za-z0-9]{1,64}\b")
"""An id of the legacy interface (section 2) or the current interface (section 2.2)."""

ID = re.compile(r"(OP|[RBPTA])-[A-Za-z0-9]{1,64}")


_KEYED = frozenset(one.name for one in (*OPERATIONS, *UNLISTED) if not one.keyless)


@dataclass(frozen=True, slots=True)
class Asked:
    """The operation of a request. ``name`` is empty if neither document has such an operation."""

    name: str
    method: str
    path: str
    """The path with placeholders for ids (``{recipient_id}``) and for parts that may be personal."""

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def needs_a_key(self) -> bool:
        """Whether an answer shows that the key is valid; unknown paths are refused before that check."""
        return self.name in _KEYED


def identify_operation(method: str, target: str) -> Asked:
    """Finds the operation of a method and a target that begins with ``/v1``."""
    return _asked(method, target.partition("?")[0])


@lru_cache(maxsize=4096)
def _asked(method: str, path: str) -> Asked:
    for shape, operation_method, name, shown in _SHAPES:
        if operation_method == method and shape.fullmatch(path):
            return Asked(name, method, shown)
    # Unknown paths may hold anything, personal data too; a bounded outline of them is enough.
    parts = [_outline(part) for part in path.split("/")[:8]]
    return Asked("", method, "/".join(parts))


def is_public_path_part(part: str) -> bool:
    """Whether a path part may be shown: a word of an operation's path, an id or a country code."""
    return part in _WORDS or bool(ID.fullmatch(part) or re.fullmatch("[A-Za-z]{0,2}", part))


def _outline(part: str) -> str:
    if ID.fullmatch(part):
        return "{id}"
    return part if is_public_path_part(part) else "…"


def _shape(path: str) -> re.Pattern[str]:
    return re.compile("/v1" + re.sub(r"\{\w+\}", "[^/]+", path) + "/?")


_WORDS_OF_PATHS = {"<wallet>": Vocabulary().legacy_wallet, "<service>": Vocabulary().legacy_service}


def _worded(path: str) -> str:
    for mark, word in _WORDS_OF_PATHS.items():
        path = path.replace(mark, word)
    return path


_SHAPES = tuple(
    (_shape(_worded(one.path)), one.method, one.name, f"/v1{_worded(one.path)}")
    for one in (*OPERATIONS, *UNLISTED)
)
_WORDS = {"v1", *(part for one in _SHAPES for part in one[3].split("/"))}
