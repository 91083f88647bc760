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

MADE = "2026-03-01T10:00:00.000Z"
BATCH_ID = "B-BENCHBIGBATCH{:08}"


def _recipient(number: int) -> str:
    return f"R-BENCHABC{number:08}"


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _memo(one: int, memos: Memos) -> str:
    alike = MEMO.format(one)
    if memos == "alike":
        return alike
    words = " ".join(Random(one).choices(_WORDS, k=len(alike) // 2))
    return words[: len(alike)]


def payments(count: int, memos: Memos = "alike") -> list[dict[str, Any]]:
    return [
        {
            "recipient": {"id": _recipient(one)},
            "sourceAmount": f"{one % 900 + 1}.{one % 100:02}",
            "memo": _memo(one, memos),
        }
        for one in range(count)
    ]


def body(count: int, number: int, memos: Memos = "alike") -> bytes:
    described = {"sourceCurrency": "USD", "description": f"March {number}"}
    return _bytes({**described, "payments": payments(count, memos)})


def additions(count: int, memos: Memos) -> bytes:
    return _bytes({"payments": payments(count, memos)})


def updates(ids: Sequence[str], memos: Memos) -> bytes:
    """A different amount and memo for each payment."""
    new = payments(len(ids) + 1, memos)[1:]
    both = zip(ids, new, strict=True)
    return _bytes(
        {
            "update_payments": [
                {"id": id_, "sourceAmount": one["sourceAmount"], "memo": one["memo"]}
                for id_, one in both
            ]
        }
    )


def removal(id_: str) -> bytes:
    return _bytes({"remove_payments": [{"id": id_}]})


def _shown(one: int, memos: Memos) -> dict[str, Any]:
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
        "memo": _memo(one, memos),
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
    """The response to the create."""
    return _bytes({"ok": True, "batch": _batch(count, number)})


@lru_cache(maxsize=4)
def summary(count: int, number: int, memos: Memos = "alike") -> bytes:
    shown = [_shown(one, memos) for one in range(count)]
    return _bytes({"ok": True, "batch": {**_batch(count, number), "payments": shown}})
