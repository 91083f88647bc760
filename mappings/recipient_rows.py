"""What is kept of a recipient that is asked about again and again: what queries read of it, and answers."""

from __future__ import annotations

from mappings.grammar import JSON
from mappings.objects import RECIPIENT, primary_account, type_of
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


def told(row: Row) -> dict[str, JSON]:
    """A row as queries read it: of its address what they name, of its accounts the primary one."""
    address, primary = row.get("address") or {}, primary_account(row)
    its: JSON = None if row.get("accounts") is None else []
    if primary:
        its = [{name: primary.get(name) for name in ("currency", "primary")}]
        its[0]["type"] = type_of(primary)
    return {
        **{name: row.get(name) for name in TOLD},
        "address": {name: address.get(name) for name in TOLD_OF_ADDRESS},
        "accounts": its,
    }


def shown(row: Row) -> dict[str, JSON]:
    """What an answer shows of a row."""
    return {name: value for name, value in row.items() if name in SHOWN}
