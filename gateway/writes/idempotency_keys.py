"""The ``Idempotency-Key`` header."""

from __future__ import annotations

from collections.abc import Sequence

from mappings.failures import Invalid, Problem

_MAX_KEY_LENGTH = 255

KEY_REUSED = Problem(
    "invalid_field", "This Idempotency-Key was used with another request.", "Idempotency-Key"
)
INVALID_KEY = Problem(
    "invalid_field",
    f"An Idempotency-Key is 1 to {_MAX_KEY_LENGTH} visible characters, and given once.",
    "Idempotency-Key",
)


def parse_idempotency_key(header_values: Sequence[str]) -> str | None:
    """Parses the ``Idempotency-Key`` of a request; raises Invalid if it is not a valid key."""
    if not header_values:
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
