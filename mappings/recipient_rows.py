"""The parts of a recipient that the cached list stores: those for queries and those for answers."""

from __future__ import annotations

from mappings.effects import JSON
from mappings.objects import RECIPIENT, determine_account_type, find_primary_account
from mappings.recipient_queries import Row

QUERY_FIELDS = (
    "id",
    "name",
    "email",
    "referenceId",
    "firstName",
    "lastName",
    "type",
    "language",
    "dob",
    "status",
    "complianceStatus",
    "payoutMethod",
    "primaryCurrency",
    "createdAt",
    "updatedAt",
)

QUERY_ADDRESS_FIELDS = ("city", "country", "region", "postalCode")
"""With the primary account, all fields that filters, sort keys and ``is_hidden`` read."""

ANSWER_FIELDS = frozenset(
    {
        *RECIPIENT.current_fields_of_answer,
        *("accounts", "compliance", "complianceStatus", "governmentIds", "ssn", "status"),
    }
)
"""All fields that ``objects.build_legacy_recipient`` reads."""


def select_query_fields(row: Row) -> dict[str, JSON]:
    """Selects the fields that queries read: parts of the address, and the primary account."""
    address, primary = row.get("address") or {}, find_primary_account(row)
    # These differ: a missing list says nothing, an empty list means that there is no account.
    accounts: JSON = None if row.get("accounts") is None else []
    if primary:
        accounts = [{name: primary.get(name) for name in ("currency", "primary")}]
        accounts[0]["type"] = determine_account_type(primary)
    return {
        **{name: row.get(name) for name in QUERY_FIELDS},
        "address": {name: address.get(name) for name in QUERY_ADDRESS_FIELDS},
        "accounts": accounts,
    }


def select_answer_fields(row: Row) -> dict[str, JSON]:
    """Selects the fields that answers are built from."""
    return {name: value for name, value in row.items() if name in ANSWER_FIELDS}
