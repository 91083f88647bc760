"""Requests of the legacy interface: request lines, and the operation that a request calls."""

import re
from dataclasses import dataclass
from functools import lru_cache

from mappings import OPERATIONS, UNLISTED


class InputError(Exception):
    """An option or input file is invalid. The message names the place and the reason, never a secret."""


METHODS = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE")
READ_METHODS = frozenset({"GET", "HEAD"})

ID_IN_TEXT = re.compile(r"\b(?:OP|[RBPTA])-[A-Za-z0-9]{1,64}\b")
"""An id (legacy interface, section 2; current interface, section 2.2)."""

OBJECT_ID = re.compile(r"(OP|[RBPTA])-[A-Za-z0-9]{1,64}")

SECRET_PARAMETER = re.compile(
    r"((api|access|secret|auth)[-_]?)?(key|token|secret|signature|password)", re.IGNORECASE
)
"""Names of query parameters whose values are secrets."""

REQUEST_LINE_START = re.compile(r"[A-Za-z]+[ \t]+/")
_REQUEST_LINE = re.compile(r"(?P<method>[A-Za-z]+)[ \t]+(?P<target>/v1(?:[/?][!-~]*)?)")


def parse_request_line(line: str) -> tuple[str, str]:
    """Returns method and target of a line such as ``GET /v1/recipients?page=1``; raises ValueError."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None or match["method"].upper() not in METHODS:
        raise ValueError(
            f"not a request line: expected a method ({', '.join(METHODS)}), a space and a "
            "percent-encoded path that begins with /v1"
        )
    # A client would cut off the fragment and send another request than the input has.
    if "#" in match["target"]:
        raise ValueError("a path cannot contain #; write %23")
    return match["method"].upper(), match["target"]


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


# Bounded, because recorded traffic has another path for each object.
@lru_cache(maxsize=4096)
def identify_operation(method: str, target: str) -> RequestedOperation:
    """Finds the operation of a method and a target that begins with ``/v1``."""
    path = target.partition("?")[0]
    for pattern, operation_method, name, display_path in _PATH_PATTERNS:
        if operation_method == method and pattern.fullmatch(path):
            return RequestedOperation(name, method, display_path)
    # Unknown paths may hold anything, personal data too; a bounded outline of them is enough.
    parts = [
        "{id}" if OBJECT_ID.fullmatch(part) else part if is_path_word(part) else "…"
        for part in path.split("/")[:8]
    ]
    return RequestedOperation("", method, "/".join(parts))


def is_path_word(part: str) -> bool:
    """Whether a path part is a word of an operation's path, or a country code."""
    return part in _PUBLIC_PATH_PARTS or bool(re.fullmatch("[A-Za-z]{0,2}", part))


KEYED_OPERATIONS = frozenset(
    operation.name for operation in (*OPERATIONS, *UNLISTED) if not operation.is_keyless
)
"""Those whose answer shows that the key is valid; unknown paths are refused before that check."""

_PATH_PATTERNS = [
    (re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + "/?"), operation.method, operation.name, path)
    for operation in (*OPERATIONS, *UNLISTED)
    for path in [f"/v1{re.sub('[<>]', '', operation.path)}"]
]
_PUBLIC_PATH_PARTS = {part for *_, path in _PATH_PATTERNS for part in path.split("/")}
