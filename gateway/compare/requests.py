"""Parses request lines as people write them: ``GET /v1/recipients?page=1``."""

from __future__ import annotations

import re

from gateway.compare.errors import InputError

METHODS = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE")

_REQUEST_LINE = re.compile(r"(?P<method>[A-Za-z]+)[ \t]+(?P<target>/v1(?:[/?][!-~]*)?)")

REQUEST_LINE_START = re.compile(r"[A-Za-z]+[ \t]+/")


def parse_request_line(line: str, location: str) -> tuple[str, str]:
    """Returns method and target; raises InputError. ``location`` is the file and line, for the message."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None or match["method"].upper() not in METHODS:
        raise InputError(
            f"{location}: not a request line: expected a method ({', '.join(METHODS)}), a space and a "
            "percent-encoded path that begins with /v1"
        )
    # A client would cut off the fragment and send another request than the input has.
    if "#" in match["target"]:
        raise InputError(f"{location}: a path cannot contain #; write %23")
    return match["method"].upper(), match["target"]


SECRET_PARAMETER = re.compile(
    r"((api|access|secret|auth)[-_]?)?(key|token|secret|signature|password)", re.IGNORECASE
)
"""Names of query parameters whose values are secrets."""
