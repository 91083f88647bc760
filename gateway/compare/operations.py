"""Finds the operation of the legacy interface that a request calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mappings import OPERATIONS, UNLISTED
from mappings.effects import Vocabulary

READ_METHODS = frozenset({"GET", "HEAD"})

ID_IN_TEXT = re.compile(r"\b(?:OP|[RBPTA])-[A-Za-z0-9]{1,64}\b")
"""An id (legacy interface, section 2; current interface, section 2.2)."""

OBJECT_ID = re.compile(r"(OP|[RBPTA])-[A-Za-z0-9]{1,64}")


_KEYED_OPERATIONS = frozenset(
    operation.name for operation in (*OPERATIONS, *UNLISTED) if not operation.is_keyless
)


@dataclass(frozen=True, slots=True)
class RequestedOperation:
    """The operation of a request. ``name`` is empty if neither document has such an operation."""

    name: str
    method: str
    path: str
    """The path with placeholders for ids (``{recipient_id}``) and for parts that may be personal."""

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def requires_api_key(self) -> bool:
        """Whether an answer shows that the key is valid; unknown paths are refused before that check."""
        return self.name in _KEYED_OPERATIONS


def identify_operation(method: str, target: str) -> RequestedOperation:
    """Finds the operation of a method and a target that begins with ``/v1``."""
    return _match_operation(method, target.partition("?")[0])


# Bounded, because recorded traffic has another path for each object.
@lru_cache(maxsize=4096)
def _match_operation(method: str, path: str) -> RequestedOperation:
    for pattern, operation_method, name, display_path in _PATH_PATTERNS:
        if operation_method == method and pattern.fullmatch(path):
            return RequestedOperation(name, method, display_path)
    # Unknown paths may hold anything, personal data too; a bounded outline of them is enough.
    parts = [_mask_path_part(part) for part in path.split("/")[:8]]
    return RequestedOperation("", method, "/".join(parts))


def is_public_path_part(part: str) -> bool:
    """Whether a path part may be shown: a word of an operation's path, an id or a country code."""
    return part in _PUBLIC_PATH_PARTS or bool(
        OBJECT_ID.fullmatch(part) or re.fullmatch("[A-Za-z]{0,2}", part)
    )


def _mask_path_part(part: str) -> str:
    if OBJECT_ID.fullmatch(part):
        return "{id}"
    return part if is_public_path_part(part) else "…"


def _compile_path(path: str) -> re.Pattern[str]:
    return re.compile("/v1" + re.sub(r"\{\w+\}", "[^/]+", path) + "/?")


_VOCABULARY_WORDS = {
    "<wallet>": Vocabulary().legacy_wallet,
    "<service>": Vocabulary().legacy_service,
}


def _fill_vocabulary(path: str) -> str:
    for placeholder, word in _VOCABULARY_WORDS.items():
        path = path.replace(placeholder, word)
    return path


_PATH_PATTERNS = tuple(
    (
        _compile_path(_fill_vocabulary(operation.path)),
        operation.method,
        operation.name,
        f"/v1{_fill_vocabulary(operation.path)}",
    )
    for operation in (*OPERATIONS, *UNLISTED)
)
_PUBLIC_PATH_PARTS = {
    "v1",
    *(part for *_, display_path in _PATH_PATTERNS for part in display_path.split("/")),
}
