"""Example requests of each operation of the legacy interface; tests send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.config.settings import Settings
from mappings.effects import JSON, Operation
from mappings.vocabulary import build_legacy_translator, map_legacy_words

EXAMPLE_IDS: Mapping[str, str] = {
    "recipients": "R-91XQ0ZXXXZ8CC0DW",
    "batches": "B-912QAJ4S8ZX0P3KB",
    "payments": "P-91XPU407RJVK1B6T",
    "other payments": "P-91XPU407RJVK1B6U",
    "countries": "CA",
}
"""Example ids by the path segment before the id."""

_BANK_ACCOUNT = {
    "country": "CA",
    "currency": "CAD",
    "name": "Ada Lovelace",
    "institution": "123",
    "branchNum": "47261",
    "accountNum": "1234567",
    "bankAddress": "1 Bank Street",
    "bankCity": "Toronto",
    "bankProvince": "ON",
    "bankPostalCode": "M5H 2N2",
}
_PAYOUT_LIMITS = {
    "autoswitch": {"limit": 1000, "active": False},
    "holdup": {"limit": 1000, "active": False},
}
_PAYOUT_SETTINGS = {
    "primary": {"method": "bank", "currency": "CAD"},
    "accounts": {"bank": _BANK_ACCOUNT, "wallet": {"address": "ada@example.com"}},
    **_PAYOUT_LIMITS,
}
_RECIPIENT_FIELDS = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
    "referenceId": "employee-12",
    "address": {
        "street1": "1 Main Street",
        "street2": "Floor 2",
        "city": "Toronto",
        "region": "ON",
        "postalCode": "M5H 2N2",
        "country": "CA",
        "phone": "+14165550100",
    },
    "ssn": "123456789",
    "passport": "X1234567",
    "dob": "1990-12-10",
    "language": "en",
    "currency": "CAD",
}
_PAYMENT_BY_ID = {
    "recipient": {"id": EXAMPLE_IDS["recipients"]},
    "sourceAmount": "100.00",
    "sourceCurrency": "USD",
    "memo": "March",
}
_PAYMENT_BY_EMAIL = {
    "recipient": {"email": "ada@example.com"},
    "targetAmount": "90.50",
    "targetCurrency": "EUR",
}

EXAMPLE_BODIES: Mapping[str, Any] = {
    "create_recipient": {**_RECIPIENT_FIELDS, "payout": _PAYOUT_SETTINGS},
    "update_recipient": {
        **_RECIPIENT_FIELDS,
        "id": EXAMPLE_IDS["recipients"],
        "status": "disabled",
    },
    "create_payout_method": _PAYOUT_SETTINGS,
    "update_payout_method": {
        "primary": {"method": "wallet"},
        "accounts": {"wallet": {"address": "ada@example.com"}},
    },
    "create_batch": {
        "sourceCurrency": "USD",
        "description": "March",
        "payments": [_PAYMENT_BY_ID, _PAYMENT_BY_EMAIL],
    },
    "update_batch": {
        "payments": [_PAYMENT_BY_ID],
        "update_payments": [{"id": EXAMPLE_IDS["payments"], "sourceAmount": "120.00"}],
        "remove_payments": [{"id": EXAMPLE_IDS["other payments"]}],
    },
    "delete_recipients": {"ids": [EXAMPLE_IDS["recipients"]]},
    "delete_batches": {"ids": [EXAMPLE_IDS["batches"]]},
    "create_payment": _PAYMENT_BY_EMAIL,
    "update_payment": {"sourceAmount": "110.00", "memo": "March, corrected"},
}
"""Request bodies by operation, in the neutral vocabulary.

Those of creates have every field that clients may send.
"""

EXAMPLE_QUERIES: Mapping[str, str] = {
    "list_recipients": "search=ada&orderBy=name&page=2",
    "list_batches": "page=1&pageSize=10",
}


@dataclass(frozen=True, slots=True)
class RequestExample:
    """An example of a legacy request."""

    method: str
    target: str
    body: JSON


def build_request_example(settings: Settings, operation: Operation) -> RequestExample:
    """Builds a made-up request of an operation, in the configured vocabulary."""
    vocabulary = settings.vocabulary.build_vocabulary()
    words = map_legacy_words(vocabulary)
    parts: list[str] = []
    for part in operation.path.split("/"):
        word = words[part.strip("<>")] if part.startswith("<") else part
        # The path segment before an id names its kind: recipients/{id}.
        parts.append(EXAMPLE_IDS[parts[-1]] if part.startswith("{") else word)
    query = EXAMPLE_QUERIES.get(operation.name, "")
    target = f"/v1{'/'.join(parts)}" + (f"?{query}" if query else "")
    body: Any = None
    if operation.body_shape is not None:
        body = build_legacy_translator(vocabulary).translate_from_neutral(
            operation.body_shape, EXAMPLE_BODIES[operation.name]
        )
    return RequestExample(operation.method, target, body)
