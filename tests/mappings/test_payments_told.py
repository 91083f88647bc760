"""Payments in a service's answer about a batch, in the forms that it may have."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.batch_views import build_batch
from mappings.payloads import find_payments

ONE = {"id": "P-1", "sourceAmount": "5.00", "sourceCurrency": "EUR"}
OTHER = {"id": "P-2", "sourceAmount": "6.00", "sourceCurrency": "USD"}


@pytest.mark.parametrize(
    "body",
    [
        {"payments": [ONE]},
        {"batch": {"payments": [ONE]}},
        {"batch": {"payments": {"payments": [ONE], "meta": {"page": 1, "pages": 1, "records": 1}}}},
        {"batch": {"id": "B-1"}, "payments": {"payments": [ONE]}},
        {"payments": [ONE, "no payment"]},
    ],
)
def test_payments_are_found_beside_the_batch_or_in_it_flat_or_with_their_meta(body: Any) -> None:
    assert list(find_payments(body) or ()) == [ONE]


@pytest.mark.parametrize("body", [{}, {"batch": {"id": "B-1"}}, {"payments": {"meta": {}}}])
def test_not_to_speak_of_payments_is_not_to_have_none(body: Any) -> None:
    assert find_payments(body) is None
    assert find_payments({"payments": []}) == []


@pytest.mark.parametrize(
    ("payments", "currency"),
    [([ONE], "EUR"), ([ONE, ONE], "EUR"), ([ONE, OTHER], None), ([{"id": "P-1"}], None)],
)
def test_a_batch_of_which_nobody_tells_the_currency_has_that_of_its_payments(
    payments: list[dict[str, Any]], currency: str | None
) -> None:
    assert build_batch("B-1", {}, [], {"id": "B-1"}, payments).currency == currency
    assert build_batch("B-1", {}, [], {"id": "B-1", "currency": "CAD"}, payments).currency == "CAD"
