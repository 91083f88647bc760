"""Which operation of the legacy interface a request asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mappings import OPERATIONS, UNLISTED
from mappings.grammar import Vocabulary

READS = frozenset({"GET", "HEAD"})

IN_TEXT = re.compile(r"\b(?:OP|[RBPTA])-[A-Za-z0-9]{1,64}\b")
"""An id of the legacy interface (section 2) or the current one (section 2.2)."""

ID = re.compile(r"(OP|[RBPTA])-[A-Za-z0-9]{1,64}")


_KEYED = frozenset(one.name for one in (*OPERATIONS, *UNLISTED) if not one.keyless)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for; ``name`` is empty where neither document has such an operation."""

    name: str
    method: str
    path: str
    """With ids as ``{recipient_id}``, and without what may name a person."""

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def needs_a_key(self) -> bool:
        """Whether an answer tells that the key is good: a path that is none is refused before it."""
        return self.name in _KEYED


def identify_operation(method: str, target: str) -> Asked:
    """The operation of a request line, from ``/v1`` on."""
    return _asked(method, target.partition("?")[0])


@lru_cache(maxsize=4096)
def _asked(method: str, path: str) -> Asked:
    for shape, operation_method, name, shown in _SHAPES:
        if operation_method == method and shape.fullmatch(path):
            return Asked(name, method, shown)
    parts = [_outline(part) for part in path.split("/")[:8]]
    return Asked("", method, "/".join(parts))


def is_public_path_part(part: str) -> bool:
    """Whether a part of a path is a word of an operation, an id or a country."""
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
