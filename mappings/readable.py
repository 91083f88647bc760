"""Whether a read was answered with what it asks for: what cannot be read is not to have none of it."""

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
"""The list that an answer of each path has."""


def is_readable(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Of reads alone, and of those whose answer would be shown as empty else.

    A bare ``{"ok": true}`` is shown so; what became of a write is not concluded from it (``settling``).
    """
    if endpoint.method != "GET" or not body.keys() - {"ok", "meta"}:
        return True
    if endpoint.path == BALANCE:
        told = funds.extract_raw_balances(body)
        return isinstance(told, dict | list) and (not told or bool(funds.parse_balances(body)))
    name = LISTS.get(endpoint.path)
    return name is None or (name in body and _are_rows(body[name]))


def _are_rows(given: JSON) -> bool:
    """Some services write null for a list without rows."""
    return given is None or (isinstance(given, list | Rows) and has_only_type(given, dict))
