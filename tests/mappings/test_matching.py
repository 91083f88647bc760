"""Matching of payments to their entries; position decides between equal candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mappings.lazy_sequences import CompressedSequence
from mappings.matching import match_payments

WHOM = {"recipient": {"id": "R-1"}}
ENTRIES: list[dict[str, Any]] = [
    {**WHOM, "targetAmount": "0.01", "targetCurrency": "CAD", "memo": "in dollars of Canada"},
    {**WHOM, "sourceAmount": "0.01", "memo": "in the batch's own"},
]
PAYMENTS: list[dict[str, Any]] = [
    {
        **WHOM,
        "id": f"P-{place}",
        "sourceAmount": "0.01",
        "targetAmount": "0.01",
        "targetCurrency": of,
    }
    for place, of in enumerate(("CAD", "USD"))
]

Kind = Callable[[Sequence[Any]], Sequence[Any]]


def memos(payments: Sequence[Any], entries: Sequence[Any]) -> list[Any]:
    return [entry and entry["memo"] for _, entry in match_payments(payments, entries, "USD")]


@pytest.mark.parametrize("kind", [list, CompressedSequence])
def test_of_two_that_may_be_each_others_the_place_decides(kind: Kind) -> None:
    assert memos(kind(PAYMENTS), ENTRIES) == [one["memo"] for one in ENTRIES]


@pytest.mark.parametrize("kind", [list, CompressedSequence])
def test_what_is_shown_in_another_order_is_found_by_what_it_pays(kind: Kind) -> None:
    others = [{**one, "sourceAmount": "5.00"} for one in ENTRIES]
    shown = [{**PAYMENTS[0], "sourceAmount": "7.00"}, {**PAYMENTS[1], "sourceAmount": "5.00"}]
    there = [others[1], ENTRIES[0]]
    assert memos(kind(shown), there) == [ENTRIES[0]["memo"], others[1]["memo"]]


@pytest.mark.parametrize("kind", [list, CompressedSequence])
def test_a_payment_nobody_asked_for_has_no_entry(kind: Kind) -> None:
    assert memos(kind(PAYMENTS), []) == [None, None]
    assert memos(kind([]), []) == []
