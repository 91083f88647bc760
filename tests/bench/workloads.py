"""Workloads: the requests, and the service's responses, the same bytes for every contestant.

``~~~~~~~~`` in them is replaced by a number, which is unique for each write, because a gateway that recognises
retries would not execute an identical write again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

API_KEY = "bench-api-key"
ACCESS_KEY, SECRET_KEY = "BENCHACCESSKEY", "bench-secret"

NUMBER = b"~~~~~~~~"
RECIPIENT_ID = f"R-BENCHABC{NUMBER.decode()}"
NEW_ID = f"R-BENCHNEW{NUMBER.decode()}"
"""For a recipient without payout methods."""

BATCH_ID = f"B-BENCHABCDEFGHI{NUMBER.decode()}"
"""As long as ids of the current interface, longer than legacy clients can store."""

LIST_ROWS = 10
SIZES = (1, 100, 10_000)
SMALL_SIZE = 2
"""Payments of the batch whose path through the code is counted."""


def insert_number(template: bytes, number: int) -> bytes:
    return template.replace(NUMBER, b"%08d" % (number % 10**8))


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    method: str
    path: str
    body: bytes = b""
    clients: int = 16
    enters: bool = False
    """Whether it writes, and so uses the database."""
    number_count: int = 10**8
    """How many different numbers there are; for reads, as many as a merchant's frequently read objects."""

    @property
    def request(self) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {API_KEY}\r\n"
        head += "Content-Type: application/json\r\n"
        if self.body:
            head += f"Content-Length: {len(self.body)}\r\n"
        return f"{head}\r\n".encode() + self.body


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _build_batch(size: int) -> Workload:
    payment = {"recipient": {"id": "R-BENCHABC00000001"}, "sourceAmount": "12.34", "memo": "March"}
    body = {
        "sourceCurrency": "USD",
        "description": f"March {NUMBER.decode()}",
        "payments": [payment] * size,
    }
    clients = 16 if size < 1000 else 2
    return Workload(
        f"batch of {size:,}", "POST", "/v1/batches", _encode(body), clients, enters=True
    )


PAYOUT = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {
        "bank": {
            "country": "US",
            "accountNum": "123456789",
            "routing": "110000000",
            "name": "Ada Lovelace",
        }
    },
}
METHODS = f"/v1/recipients/{NEW_ID}/payout-methods"

WORKLOADS = (
    Workload("recipient", "GET", f"/v1/recipients/{RECIPIENT_ID}", number_count=200),
    Workload("list of 10", "GET", "/v1/recipients?page=1"),
    Workload("payout method", "POST", METHODS, _encode(PAYOUT), enters=True),
    *map(_build_batch, SIZES),
)

COUNTED = (WORKLOADS[0], WORKLOADS[2], _build_batch(SMALL_SIZE))
"""The requests whose path through the code is counted."""

# Responses of the service

ACCOUNT = {
    "recipientAccountId": "A-BENCHABC00000001",
    "primary": True,
    "currency": "USD",
    "type": "bank-transfer",
    "country": "US",
    "accountHolderName": "Ada Lovelace",
    "accountNum": "*******89",
    "branchId": "110000000",
    "bankName": "Example Bank",
    "bankAddress": "1 Bank Plaza",
    "bankCity": "Austin",
    "bankRegionCode": "TX",
    "bankPostalCode": "73301",
}
CREATED_AT, UPDATED_AT = "2026-03-01T10:00:00.000Z", "2026-03-02T08:00:00.000Z"


def _build_recipient(id_: str, accounts: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "id": id_,
        "referenceId": "emp-17",
        "type": "individual",
        "email": "ada@example.com",
        "name": "Ada Lovelace",
        "firstName": "Ada",
        "lastName": "Lovelace",
        "status": "active",
        "complianceStatus": "verified",
        "compliance": {"status": "verified", "checkedAt": UPDATED_AT},
        "avatarUrl": "https://images.example/R-1.png",
        "language": "en",
        "dob": "1990-12-10",
        "placeOfBirth": "London",
        "passport": None,
        "ssn": None,
        "governmentIds": [{"country": "US", "type": "SSN", "value": "*******89"}],
        "address": {
            "street1": "1 Main St",
            "street2": "",
            "city": "Austin",
            "region": "TX",
            "postalCode": "73301",
            "country": "US",
            "phone": "+15125550100",
        },
        "routeType": "ach",
        "routeMinimum": "5",
        "estimatedFees": "1.00",
        "payoutMethod": "bank-transfer",
        "primaryCurrency": "USD",
        "accounts": accounts,
        "tags": ["vip"],
        "contactEmails": ["ops@example.com"],
        "createdAt": CREATED_AT,
        "updatedAt": UPDATED_AT,
    }


def _build_payment(number: int) -> dict[str, Any]:
    return {
        "id": f"P-{NUMBER.decode()}{number:014}",
        "recipient": {
            "id": "R-BENCHABC00000001",
            "referenceId": "emp-17",
            "email": "ada@example.com",
            "name": "Ada Lovelace",
            "status": "active",
            "country": "US",
            "payoutMethod": "bank-transfer",
        },
        "status": "pending",
        "sourceAmount": "12.34",
        "targetAmount": "12.34",
        "exchangeRate": "1.000000",
        "fxRate": "0.00",
        "fees": "1.00",
        "recipientFees": "0.00",
        "merchantFees": "1.00",
        "memo": "March",
        "sourceCurrency": "USD",
        "targetCurrency": "USD",
        "compliance": {"status": "verified", "checkedAt": UPDATED_AT},
        "processedAt": None,
        "createdAt": CREATED_AT,
        "updatedAt": CREATED_AT,
        "method": "bank-transfer",
    }


def _build_batch_response(size: int) -> dict[str, Any]:
    hundredths = 1234 * size
    return {
        "id": BATCH_ID,
        "status": "open",
        "amount": f"{hundredths // 100}.{hundredths % 100:02}",
        "totalPayments": size,
        "currency": "USD",
        "description": f"March {NUMBER.decode()}",
        "sentAt": None,
        "completedAt": None,
        "createdAt": CREATED_AT,
        "updatedAt": CREATED_AT,
        "payments": [_build_payment(number) for number in range(size)],
    }


RECIPIENT_ANSWER = _encode({"ok": True, "recipient": _build_recipient(RECIPIENT_ID, [ACCOUNT])})
NEW_ANSWER = _encode({"ok": True, "recipient": _build_recipient(NEW_ID, [])})
ACCOUNT_ANSWER = _encode({"ok": True, "account": ACCOUNT})
LIST_ANSWER = _encode(
    {
        "ok": True,
        "recipients": [_build_recipient(f"R-BENCHABC{n:08}", [ACCOUNT]) for n in range(LIST_ROWS)],
        "meta": {"page": 1, "pages": 3, "records": 30},
    }
)
BATCH_ANSWERS = {
    size: _encode({"ok": True, "batch": _build_batch_response(size)})
    for size in (*SIZES, SMALL_SIZE)
}
