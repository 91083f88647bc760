"""Amounts that a service sends as text or as JSON numbers, as clients see them."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from mappings import money
from mappings.balances import read_balances
from mappings.batch_reads import build_payment_entry
from mappings.batch_views import build_batch, build_legacy_batch
from mappings.effects import JSON, Answer, Request
from mappings.objects import build_legacy_payment

AMOUNT_FORMATS = [
    (12, "12.00"),
    (Decimal("12.5"), "12.50"),
    (Decimal("12.05"), "12.05"),
    (Decimal("12.345"), "12.345"),
    (Decimal("1E+3"), "1000.00"),
    (Decimal(0), "0.00"),
]


@pytest.mark.parametrize(("number", "text"), AMOUNT_FORMATS)
def test_number_has_one_format_everywhere(number: JSON, text: str) -> None:
    payment = {"id": "P-1", "sourceAmount": number, "fees": number, "recipient": {"id": "R-1"}}
    batch = build_batch("B-1", {}, [], {"currency": "USD", "status": "open"}, [payment])
    unread_batch = build_batch("B-1", {}, [], {"amount": number, "status": "open"}, None)
    legacy_payment = build_legacy_payment(payment, None)

    assert (legacy_payment["sourceAmount"], legacy_payment["fees"]) == (text, text)
    assert (build_legacy_batch(batch)["amount"], build_legacy_batch(unread_batch)["amount"]) == (
        text,
        text,
    )
    assert build_payment_entry(batch.payments[0])["sourceAmount"] == text
    assert read_one_balance(number) == text


@pytest.mark.parametrize(("amount", "text"), [("12", "12.00"), ("12.50", "12.50")])
def test_amount_of_client_is_formatted_like_that_of_service(amount: str, text: str) -> None:
    entry = {"id": "P-1", "recipient": {"id": "R-1"}, "sourceAmount": amount}
    draft = build_batch("B-1", {"phase": "draft", "currency": "USD"}, [entry], {}, None)
    assert build_legacy_payment(draft.payments[0], None)["sourceAmount"] == text
    assert draft.entries[0]["sourceAmount"] == amount


@pytest.mark.parametrize("text", ["12", "12.50", "n/a"])
def test_text_is_passed_on_unchanged(text: str) -> None:
    """Untranslated values pass unchanged (contract, section 0)."""
    assert (
        build_legacy_payment({"sourceAmount": text, "fxRate": text}, None)["sourceAmount"] == text
    )
    assert read_one_balance(text) == text


def test_rate_keeps_decimals_of_service() -> None:
    legacy_payment = build_legacy_payment({"exchangeRate": Decimal("1.5"), "fxRate": 1}, None)
    assert (legacy_payment["exchangeRate"], legacy_payment["fxRate"]) == ("1.5", "1")


@pytest.mark.parametrize("value", [None, True, [], {}])
def test_non_amount_is_unchanged(value: JSON) -> None:
    assert (
        money.format_amount_unless_text(value),
        money.normalize_amount(value),
        money.format_rate(value),
    ) == (value, value, value)


def read_one_balance(amount: JSON) -> JSON:
    flow: Generator[Any, Any, Answer] = read_balances(build_request())
    next(flow)
    with pytest.raises(StopIteration) as stop:
        flow.send({"balances": {"USD": {"amount": amount, "type": "service"}}})
    return stop.value.value.body["balances"]["USD"]["amount"]


def build_request() -> Request:
    return Request(ids={}, query={}, body={}, now=datetime(2026, 3, 1, tzinfo=UTC))
