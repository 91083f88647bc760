"""Parses request lines as people write them: ``GET /v1/recipients?page=1``."""

from __future__ import annotations

import re

from gateway.compare.errors import Unusable

METHODS = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE")

_LINE = re.compile(r"(?P<method>[A-Za-z]+)[ \t]+(?P<target>/v1(?:[/?][!-~]*)?)")

LOOKS_LIKE_ONE = re.compile(r"[A-Za-z]+[ \t]+/")


def parse_request_line(line: str, where: str) -> tuple[str, str]:
    """Returns method and target; raises InputError. ``where`` is the file and line for the message."""
    found = _LINE.fullmatch(line)
    if found is None or found["method"].upper() not in METHODS:
        raise Unusable(
            f"{where}: not a request line: expected a method ({', '.join(METHODS)}), a space and a "
            "percent-encoded path that begins with /v1"
        )
    if "#" in found["target"]:
        raise Unusable(f"{where}: a path cannot contain #; write %23")
    return found["method"].upper(), found["target"]


SECRET = re.compile(
    r"((api|access|secret|auth)[-_]?)?(key|token|secret|signature|password)", re.IGNORECASE
)
"""Names of query parameters whose values are secrets."""
