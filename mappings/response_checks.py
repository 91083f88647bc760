"""Checks the shape of responses.

A malformed list is an error, not an empty list, and a create without an id is in doubt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mappings.balances import extract_raw_balances, parse_balances
from mappings.current import BALANCE_PATH, ID_PATTERN, Endpoint
from mappings.effects import JSON
from mappings.lazy_sequences import LazySequence, has_only_type
from mappings.paging import parse_count_or_default
from mappings.payloads import extract_batch

LIST_FIELDS = {
    "/recipients": "recipients",
    "/recipients/{id}/logs": "activities",
    "/recipients/{id}/payments": "payments",
    "/batches": "batches",
}
"""Path to the field that contains the list in its response."""

CHECKED_PATHS = {*LIST_FIELDS, BALANCE_PATH}


def has_expected_shape(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Whether the response of a checked path contains the expected list, balances or new id.

    Only reads whose malformed response would look empty are checked. A bare ``{"ok": true}`` is
    shown as empty unless its ``meta`` counts records; ``outcome_rules`` never takes it as proof that
    a write was not executed.
    """
    if endpoint.method == "POST":
        return _has_new_id(endpoint, body)
    # Treating the response to another write as an error would leave its outcome in doubt.
    if endpoint.method != "GET":
        return True
    if not body.keys() - {"ok", "meta"}:
        meta = body.get("meta")
        return not isinstance(meta, dict) or parse_count_or_default(meta.get("records"), 0) <= 0
    if endpoint.path == BALANCE_PATH:
        balances = extract_raw_balances(body)
        return isinstance(balances, dict | list) and (not balances or bool(parse_balances(body)))
    name = LIST_FIELDS[endpoint.path]
    return name in body and _is_list_of_objects(body[name])


def _has_new_id(endpoint: Endpoint, body: Mapping[str, JSON]) -> bool:
    """Whether the response to a create names the new object, which later calls need."""
    created = extract_batch(body) if endpoint.path == "/batches" else body.get("recipient")
    id_ = created.get("id") if isinstance(created, dict) else None
    return isinstance(id_, str) and re.fullmatch(ID_PATTERN, id_) is not None


def _is_list_of_objects(value: JSON) -> bool:
    """Whether the value is a list of objects; some services send null for an empty list."""
    return value is None or (isinstance(value, list | LazySequence) and has_only_type(value, dict))
