"""The parts of a recipient that the cached list stores: those for queries and those for answers."""

from __future__ import annotations

from mappings.effects import JSON
from mappings.objects import RECIPIENT
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


def select_answer_fields(row: Row) -> dict[str, JSON]:
    """Selects the fields that answers are built from."""
    return {name: value for name, value in row.items() if name in ANSWER_FIELDS}
