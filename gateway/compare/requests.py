"""Requests as people write them: ``GET /v1/recipients?page=1``."""

from __future__ import annotations

import re

from gateway.compare.errors import Unusable

METHODS = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE")

_LINE = re.compile(r"(?P<method>[A-Za-z]+)[ \t]+(?P<target>/v1(?:[/?][!-~]*)?)")

LOOKS_LIKE_ONE = re.compile(r"[A-Za-z]+[ \t]+/")


def parse_request_line(line: str, where: str) -> tuple[str, str]:
    """Method and target; raises Unusable."""
    found = _LINE.fullmatch(line)
    if found is None or found["method"].upper() not in METHODS:
        raise Unusable(
            f"{where}: not a request: a method ({', '.join(METHODS)}), a space and a path "
            "from /v1 on, percent-encoded"
        )
    if "#" in found["target"]:
        raise Unusable(f"{where}: a path has no #; write %23")
    return found["method"].upper(), found["target"]


SECRET = re.compile(
    r"((api|access|secret|auth)[-_]?)?(key|token|secret|signature|password)", re.IGNORECASE
)
"""Names of parameters that carry one."""
