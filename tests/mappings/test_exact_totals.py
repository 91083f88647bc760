"""Totals that are longer than the 28 digits of Python's decimal context."""

from __future__ import annotations

from mappings import balances, summaries

HUGE_AMOUNT = "9" * 40 + ".01"


def test_net_amount_is_exact_at_any_size():
    payments = [{"sourceAmount": HUGE_AMOUNT, "merchantFees": "0.98"}, {"sourceAmount": "0.01"}]
    totals = summaries.compute_totals(payments)
    assert str(totals["value"]) == "9" * 40 + ".02"
    assert str(totals["net"]) == "1" + "0" * 40


def test_required_funds_are_exact_at_any_size():
    payments = [{"sourceAmount": HUGE_AMOUNT, "merchantFees": "0.01"}]
    sufficient_balances = [{"amount": "9" * 40 + ".02", "currency": "USD", "type": "service"}]
    insufficient_balances = [{"amount": HUGE_AMOUNT, "currency": "USD", "type": "service"}]
    assert balances.has_sufficient_funds(sufficient_balances, payments, "USD")
    assert not balances.has_sufficient_funds(insufficient_balances, payments, "USD")
