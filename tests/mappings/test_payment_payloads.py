"""Payments in a service's answer about a batch, in the forms that it may have."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.batch_views import build_batch
from mappings.payloads import find_all_payments, find_payments, has_more_payments

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
    ("payments", "meta", "is_whole"),
    [
        ([EURO_PAYMENT], {}, True),
        ([EURO_PAYMENT], {"pages": 1}, True),
        ([EURO_PAYMENT], {"pages": 2}, False),
        ([EURO_PAYMENT], {"records": 1, "pages": 2}, True),
        ([EURO_PAYMENT], {"records": 2, "pages": 1}, False),
        ([], {"records": 0, "pages": 2}, True),
        ([], {"records": 1}, False),
    ],
)
def test_page_of_a_longer_list_is_told_by_its_rows_else_by_its_pages(
    payments: list[Any], meta: Any, is_whole: bool
) -> None:
    batch = {"payments": payments, "meta": meta}
    assert (find_payments({"batch": batch}) is not None) == is_whole
    assert find_payments({"batch": batch}, allows_page=True) == payments


def test_batch_that_counts_more_payments_than_it_shows_has_others() -> None:
    for count in ({"totalPayments": 1}, {"payments": {"payments": [EURO_PAYMENT]}}, {}):
        assert find_all_payments({"batch": {"payments": [EURO_PAYMENT], **count}}) is not None
    assert find_all_payments({"batch": {"payments": [EURO_PAYMENT], "totalPayments": 2}}) is None
    assert has_more_payments({"payments": {"meta": {"records": 2}}}, known_count=1)


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
