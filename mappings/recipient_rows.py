"""What is kept of a recipient that is asked about again and again: what queries read of it, and answers."""

from __future__ import annotations

from mappings.grammar import JSON
from mappings.objects import RECIPIENT, determine_account_type, find_primary_account
from mappings.recipient_queries import Row

TOLD = (
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
TOLD_OF_ADDRESS = ("city", "country", "region", "postalCode")
"""With the primary account, all that a parameter, an order or ``hidden`` of a query reads of a row."""

SHOWN = frozenset(
    {
        *RECIPIENT.reads,
        *("accounts", "compliance", "complianceStatus", "governmentIds", "ssn", "status"),
    }
)
"""All that ``recipient_answer`` reads of a row."""


def select_query_fields(row: Row) -> dict[str, JSON]:
    """A row as queries read it: of its address what they name, of its accounts the primary one."""
    address, primary = row.get("address") or {}, find_primary_account(row)
    its: JSON = None if row.get("accounts") is None else []
    if primary:
        its = [{name: primary.get(name) for name in ("currency", "primary")}]
        its[0]["type"] = determine_account_type(primary)
    return {
        **{name: row.get(name) for name in TOLD},
        "address": {name: address.get(name) for name in TOLD_OF_ADDRESS},
        "accounts": its,
    }


def select_answer_fields(row: Row) -> dict[str, JSON]:
    """What an answer shows of a row."""
    return {name: value for name, value in row.items() if name in SHOWN}
