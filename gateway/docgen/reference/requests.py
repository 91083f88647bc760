"""Example requests of each operation, with every field that clients may send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.docgen.openapi.examples import EXAMPLE_BODIES, EXAMPLE_IDS

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

EXAMPLE_REQUESTS: Mapping[str, Any] = {
    **EXAMPLE_BODIES,
    "create_recipient": {**_RECIPIENT_FIELDS, "payout": _PAYOUT_SETTINGS},
    "update_recipient": {
        **_RECIPIENT_FIELDS,
        "id": EXAMPLE_IDS["recipients"],
        "status": "disabled",
        "payout": {"primary": {"method": "bank"}, "accounts": {"bank": _BANK_ACCOUNT}},
    },
    "create_payout_method": _PAYOUT_SETTINGS,
    "update_payout_method": _PAYOUT_SETTINGS,
    "create_batch": {
        "sourceCurrency": "USD",
        "description": "March",
        "payments": [_PAYMENT_BY_ID, _PAYMENT_BY_EMAIL],
    },
    "update_batch": {
        "payments": [_PAYMENT_BY_ID],
        "update_payments": [{"id": EXAMPLE_IDS["payments"], "sourceAmount": "120.00"}],
        "remove_payments": [{"id": "P-91XPU407RJVK1B6U"}],
    },
    "create_payment": _PAYMENT_BY_EMAIL,
    "update_payment": {"sourceAmount": "110.00", "memo": "March, corrected"},
}

EXAMPLE_QUERIES: Mapping[str, str] = {
    "list_recipients": "search=ada&orderBy=name&page=2",
    "list_batches": "page=1&pageSize=10",
}
