"""Payments in a service's answer about a batch, in the forms that it may have."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.batch_views import build_batch
from mappings.payloads import find_payments

EURO_PAYMENT = {"id": "P-1", "sourceAmount": "5.00", "sourceCurrency": "EUR"}
DOLLAR_PAYMENT = {"id": "P-2", "sourceAmount": "6.00", "sourceCurrency": "USD"}


@pytest.mark.parametrize(
    "body",
    [
        {"payments": [EURO_PAYMENT]},
        {"batch": {"payments": [EURO_PAYMENT]}},
        {
            "batch": {
                "payments": {
                    "payments": [EURO_PAYMENT],
                    "meta": {"page": 1, "pages": 1, "records": 1},
                }
            }
        },
        {"batch": {"id": "B-1"}, "payments": {"payments": [EURO_PAYMENT]}},
        {"payments": [EURO_PAYMENT, "no payment"]},
    ],
)
def test_payments_are_found_beside_or_inside_the_batch(body: Any) -> None:
    assert list(find_payments(body) or ()) == [EURO_PAYMENT]


@pytest.mark.parametrize("body", [{}, {"batch": {"id": "B-1"}}, {"payments": {"meta": {}}}])
def test_omitted_payments_differ_from_no_payments(body: Any) -> None:
    assert find_payments(body) is None
    assert find_payments({"payments": []}) == []


@pytest.mark.parametrize(
    ("payments", "currency"),
    [
        ([EURO_PAYMENT], "EUR"),
        ([EURO_PAYMENT, EURO_PAYMENT], "EUR"),
        ([EURO_PAYMENT, DOLLAR_PAYMENT], None),
        ([{"id": "P-1"}], None),
    ],
)
def test_batch_without_currency_uses_currency_of_its_payments(
    payments: list[dict[str, Any]], currency: str | None
) -> None:
    assert build_batch("B-1", {}, [], {"id": "B-1"}, payments).currency == currency
    assert build_batch("B-1", {}, [], {"id": "B-1", "currency": "CAD"}, payments).currency == "CAD"
