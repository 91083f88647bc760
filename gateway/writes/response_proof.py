"""What a response of the service proves about a write (contract of the translation, section 7)."""

from __future__ import annotations

from collections.abc import Mapping

from mappings import errors
from mappings.effects import JSON
from mappings.failures import Problem


def is_success(status: int, body: Mapping[str, JSON]) -> bool:
    """Whether a response with a readable body proves that the write was executed."""
    return 200 <= status < 300 and body.get("ok") is not False


def is_proven_refusal(status: int, body: Mapping[str, JSON] | None) -> bool:
    """Whether a response to a write proves that it was not executed (contract, section 7).

    A 4xx with the service's own error JSON does, and so does a 2xx with ``ok: false`` and error
    codes. A 5xx does not: it may come from a proxy that gave up while the service was still
    working.
    """
    # Every code must blame the client: one that does not may mean that a part was done.
    if status < 300:
        return derive_status_from_error_codes(body or {}) < 500
    return 400 <= status < 500 and any(map(parse_error_entry, list_error_entries(body or {})))


def derive_status_from_error_codes(body: Mapping[str, JSON]) -> int:
    """Returns the status for the errors of a 2xx with ``ok: false``; 500 if one has no code."""
    problems = [parse_error_entry(entry) for entry in list_error_entries(body)]
    parsed = [problem for problem in problems if problem is not None]
    return errors.derive_status_from_problem_codes(parsed) if len(parsed) == len(problems) else 500


def list_error_entries(body: Mapping[str, JSON]) -> list[JSON]:
    entries = body.get("errors")
    return entries if isinstance(entries, list) else []


def parse_error_entry(entry: JSON) -> Problem | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("code"), str):
        return None
    message, field = entry.get("message"), entry.get("field")
    return Problem(
        entry["code"],
        message if isinstance(message, str) else "",
        field if isinstance(field, str) else None,
    )
