"""Checks the shape of read responses: a malformed list is an error and not an empty list."""

from __future__ import annotations

from collections.abc import Mapping

from mappings import funds
from mappings.current import BALANCE, Endpoint
from mappings.grammar import JSON
from mappings.rows import Rows, has_only_type

LISTS = {
    "/recipients": "recipients",
    "/recipients/{id}/logs": "activities",
    "/recipients/{id}/payments": "payments",
    "/batches": "batches",
}
"""Path to the field that contains the list in its response."""


def is_readable(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Tells if the response to a read contains the expected list or balances.

    Only reads whose malformed response would look empty are checked. A bare ``{"ok": true}`` is
    shown as empty, but ``outcome_rules`` never takes it as proof that a write was not executed.
    """
    # Treating the response to a write as an error would leave its outcome in doubt.
    if endpoint.method != "GET" or not body.keys() - {"ok", "meta"}:
        return True
    if endpoint.path == BALANCE:
        told = funds.extract_raw_balances(body)
        return isinstance(told, dict | list) and (not told or bool(funds.parse_balances(body)))
    name = LISTS.get(endpoint.path)
    return name is None or (name in body and _are_rows(body[name]))


def _are_rows(given: JSON) -> bool:
    """Tells if the value is a list of objects; some services send null for an empty list."""
    return given is None or (isinstance(given, list | Rows) and has_only_type(given, dict))
