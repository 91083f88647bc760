"""Example requests of each operation, with every field that clients may send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.docgen.openapi.examples import BODIES, IDS

_BANK = {
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
_HOLDS = {
    "autoswitch": {"limit": 1000, "active": False},
    "holdup": {"limit": 1000, "active": False},
}
_PAYOUT = {
    "primary": {"method": "bank", "currency": "CAD"},
    "accounts": {"bank": _BANK, "wallet": {"address": "ada@example.com"}},
    **_HOLDS,
}
_RECIPIENT = {
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
_ONE = {
    "recipient": {"id": IDS["recipients"]},
    "sourceAmount": "100.00",
    "sourceCurrency": "USD",
    "memo": "March",
}
_OTHER = {
    "recipient": {"email": "ada@example.com"},
    "targetAmount": "90.50",
    "targetCurrency": "EUR",
}

REQUESTS: Mapping[str, Any] = {
    **BODIES,
    "create_recipient": {**_RECIPIENT, "payout": _PAYOUT},
    "update_recipient": {
        **_RECIPIENT,
        "id": IDS["recipients"],
        "status": "disabled",
        "payout": {"primary": {"method": "bank"}, "accounts": {"bank": _BANK}},
    },
    "create_payout_method": _PAYOUT,
    "update_payout_method": _PAYOUT,
    "create_batch": {"sourceCurrency": "USD", "description": "March", "payments": [_ONE, _OTHER]},
    "update_batch": {
        "payments": [_ONE],
        "update_payments": [{"id": IDS["payments"], "sourceAmount": "120.00"}],
        "remove_payments": [{"id": "P-91XPU407RJVK1B6U"}],
    },
    "create_payment": _OTHER,
    "update_payment": {"sourceAmount": "110.00", "memo": "March, corrected"},
}

QUERIES: Mapping[str, str] = {
    "list_recipients": "search=ada&orderBy=name&page=2",
    "list_batches": "page=1&pageSize=10",
}
