"""Whether a read was answered with what it asks for: what cannot be read is not to have none of it."""

from __future__ import annotations

from collections.abc import Mapping

from mappings.current import BALANCE, Endpoint
from mappings.grammar import JSON
from mappings.rows import Rows, are_all

LISTS = {
    "/recipients": "recipients",
    "/recipients/{id}/logs": "activities",
    "/recipients/{id}/payments": "payments",
    "/batches": "batches",
}
"""The list that an answer of each path has."""


def is_readable(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Of reads alone, and of those whose answer would be shown as empty else."""
    if endpoint.method != "GET":
        return True
    if endpoint.path == BALANCE:
        return _are_balances(body.get("balances", body.get("balance")))
    name = LISTS.get(endpoint.path)
    return name is None or (name in body and _are_rows(body[name]))


def _are_rows(given: JSON) -> bool:
    """Some services write null for a list without rows."""
    return given is None or (isinstance(given, list | Rows) and are_all(given, dict))


def _are_balances(given: JSON) -> bool:
    """An object of entries or a list of them, of which at least one can be read if there are any."""
    if not isinstance(given, dict | list):
        return False
    entries = given.values() if isinstance(given, dict) else given
    return not given or any(isinstance(one, dict) for one in entries)
