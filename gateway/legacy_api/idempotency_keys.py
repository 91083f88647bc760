"""The ``Idempotency-Key`` of a request."""

from __future__ import annotations

from gateway.http.request import HttpRequest
from mappings.failures import Invalid, Problem

_MAX_KEY_LENGTH = 255
INVALID_KEY = Problem(
    "invalid_field",
    f"An Idempotency-Key is 1 to {_MAX_KEY_LENGTH} visible characters, and given once.",
    "Idempotency-Key",
)


def read_idempotency_key(request: HttpRequest) -> str | None:
    """Reads the key of a write; raises Invalid if it is not a valid one."""
    header_values = request.fields.headers.getall("Idempotency-Key", [])
    # A GET may write (the summary does), but to its client it is a read, which needs no key.
    if not header_values or request.method == "GET":
        return None
    key = header_values[0].strip()
    if (
        # Two values may come from a proxy that merged requests; neither is safe to choose.
        len(header_values) > 1
        or not 0 < len(key) <= _MAX_KEY_LENGTH
        or not (key.isascii() and key.isprintable())
    ):
        raise Invalid(INVALID_KEY)
    return key
