"""Builds a batch of very many payments: the client's request and the service's responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any, Literal

COUNT = 100_000
MEMO = "Royalties of March, statement {:08}, thank you for everything; paid by the house on the last day of it"
"""Long enough that a hundred thousand payments make 18 MB."""

Memos = Literal["alike", "of random words"]
"""Memos that differ in a number only and compress well, or that have hardly anything in common."""

_PARTS = [a + b for a in "bcdfghjklmnprstvwyz" for b in "aeiou"]
_SPELL = Random(1)
_WORDS = ["".join(_SPELL.choices(_PARTS, k=_SPELL.randint(1, 4))) for _ in range(5000)]

CREATED_AT = "2026-03-01T10:00:00.000Z"
BATCH_ID = "B-BENCHBIGBATCH{:08}"


def _build_recipient(number: int) -> str:
    return f"R-BENCHABC{number:08}"


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _build_memo(number: int, memos: Memos) -> str:
    similar_memo = MEMO.format(number)
    if memos == "alike":
        return similar_memo
    text = " ".join(Random(number).choices(_WORDS, k=len(similar_memo) // 2))
    return text[: len(similar_memo)]


def build_payments(count: int, memos: Memos = "alike") -> list[dict[str, Any]]:
    return [
        {
            "recipient": {"id": _build_recipient(number)},
            "sourceAmount": f"{number % 900 + 1}.{number % 100:02}",
            "memo": _build_memo(number, memos),
        }
        for number in range(count)
    ]


def build_create_body(count: int, number: int, memos: Memos = "alike") -> bytes:
    described = {"sourceCurrency": "USD", "description": f"March {number}"}
    return _encode({**described, "payments": build_payments(count, memos)})


def build_additions(count: int, memos: Memos) -> bytes:
    return _encode({"payments": build_payments(count, memos)})


def build_updates(ids: Sequence[str], memos: Memos) -> bytes:
    """A different memo for each payment: the service shows no change of an amount."""
    new = build_payments(len(ids) + 1, memos)[1:]
    both = zip(ids, new, strict=True)
    return _encode(
        {"update_payments": [{"id": id_, "memo": number["memo"]} for id_, number in both]}
    )


def build_removal(id_: str) -> bytes:
    return _encode({"remove_payments": [{"id": id_}]})


def _build_shown_payment(number: int, memos: Memos) -> dict[str, Any]:
    amount = f"{number % 900 + 1}.{number % 100:02}"
    return {
        "id": f"P-BENCHABCDEFGH{number:08}",
        "recipient": {
            "id": _build_recipient(number),
            "email": f"payee{number}@example.com",
            "name": f"Payee {number}",
            "status": "active",
            "country": "US",
        },
        "status": "pending",
        "sourceAmount": amount,
        "targetAmount": amount,
        "fees": "1.00",
        "memo": _build_memo(number, memos),
        "sourceCurrency": "USD",
        "targetCurrency": "USD",
        "createdAt": CREATED_AT,
        "updatedAt": CREATED_AT,
    }


def _build_batch(count: int, number: int) -> dict[str, Any]:
    return {
        "id": BATCH_ID.format(number),
        "status": "open",
        "totalPayments": count,
        "currency": "USD",
        "description": f"March {number}",
        "createdAt": CREATED_AT,
        "updatedAt": CREATED_AT,
    }


def build_create_response(count: int, number: int) -> bytes:
    """The response to the create."""
    return _encode({"ok": True, "batch": _build_batch(count, number)})


@lru_cache(maxsize=4)
def build_summary(count: int, number: int, memos: Memos = "alike") -> bytes:
    payments = [_build_shown_payment(number, memos) for number in range(count)]
    return _encode({"ok": True, "batch": {**_build_batch(count, number), "payments": payments}})
