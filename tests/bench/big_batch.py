"""A batch of very many payments: what a client sends, and what the service shows of it."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

COUNT = 100_000
MEMO = "Royalties of March, statement {:08}, thank you for everything; paid by the house on the last day of it"
"""As long as makes 18 MB of a hundred thousand."""

MADE = "2026-03-01T10:00:00.000Z"
BATCH_ID = "B-BENCHBIGBATCH{:08}"


def _recipient(number: int) -> str:
    return f"R-BENCHABC{number:08}"


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def body(count: int, number: int) -> bytes:
    payments = [
        {
            "recipient": {"id": _recipient(one)},
            "sourceAmount": f"{one % 900 + 1}.{one % 100:02}",
            "memo": MEMO.format(one),
        }
        for one in range(count)
    ]
    described = {"sourceCurrency": "USD", "description": f"March {number}"}
    return _bytes({**described, "payments": payments})


def _shown(one: int) -> dict[str, Any]:
    amount = f"{one % 900 + 1}.{one % 100:02}"
    return {
        "id": f"P-BENCHABCDEFGH{one:08}",
        "recipient": {
            "id": _recipient(one),
            "email": f"payee{one}@example.com",
            "name": f"Payee {one}",
            "status": "active",
            "country": "US",
        },
        "status": "pending",
        "sourceAmount": amount,
        "targetAmount": amount,
        "fees": "1.00",
        "memo": MEMO.format(one),
        "sourceCurrency": "USD",
        "targetCurrency": "USD",
        "createdAt": MADE,
        "updatedAt": MADE,
    }


def _batch(count: int, number: int) -> dict[str, Any]:
    return {
        "id": BATCH_ID.format(number),
        "status": "open",
        "totalPayments": count,
        "currency": "USD",
        "description": f"March {number}",
        "createdAt": MADE,
        "updatedAt": MADE,
    }


def made(count: int, number: int) -> bytes:
    """The answer to the create."""
    return _bytes({"ok": True, "batch": _batch(count, number)})


@lru_cache(maxsize=2)
def summary(count: int, number: int) -> bytes:
    payments = [_shown(one) for one in range(count)]
    return _bytes({"ok": True, "batch": {**_batch(count, number), "payments": payments}})
