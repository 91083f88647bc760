"""Validation of payments (current interface, sections 2.1 and 4.3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.simulator import money, rates, values
from gateway.simulator.quotes import agree
from gateway.simulator.refusals import Problems, Refusal
from gateway.simulator.state import Batch, Payment, Recipient, Terms, World
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject

REFUSED = ("suspended", "archived")


@dataclass(frozen=True)
class Order:
    """A validated payment of a request."""

    recipient: Recipient
    amount: Decimal
    currency: str
    memo: str
    terms: Terms


def entries(
    problems: Problems, body: JsonObject, name: str
) -> Iterable[tuple[Problems, JsonObject]]:
    """Yield the objects of an array in a body; a missing array counts as empty."""
    sent = body.get(name)
    if not isinstance(sent, list | None):
        problems.invalid(name, "Must be an array")
        return
    for position, entry in enumerate(sent or []):
        if isinstance(entry, dict):
            yield problems.within(f"{name}[{position}]."), entry
        else:
            problems.invalid(f"{name}[{position}]", "Must be an object")


def read(world: World, problems: Problems, sent: JsonObject, batch: Batch) -> Order | None:
    """Parse a new payment; the result is valid only if no problem was added."""
    payee = _payee(world, problems, sent.get("recipient"))
    return _read_rest(world, problems, _in_current_names(sent, batch), batch, payee)


def read_change(
    world: World, problems: Problems, sent: JsonObject, payment: Payment
) -> Order | None:
    """Parse a changed payment; its recipient cannot change (earlier interface, section 4.4)."""
    before = {
        "amount": money.text(payment.amount),
        "currency": payment.currency,
        "memo": payment.memo,
    }
    asked = _in_current_names(sent, payment.batch)
    kept = None if {"amount", "currency"} & asked.keys() else payment.terms
    changed = {**before, **asked}
    return _read_rest(world, problems, changed, payment.batch, payment.recipient, kept=kept)


def _in_current_names(sent: JsonObject, batch: Batch) -> JsonObject:
    # Clients of inferred paths send the payloads of the earlier document.
    if sent.get("sourceAmount") is not None:
        return {"amount": sent["sourceAmount"], "currency": batch.currency, **sent}
    if sent.get("targetAmount") is not None:
        return {"amount": sent["targetAmount"], "currency": sent.get("targetCurrency"), **sent}
    return sent


def _read_rest(
    world: World,
    problems: Problems,
    sent: JsonObject,
    batch: Batch,
    payee: Recipient | None,
    *,
    kept: Terms | None = None,
) -> Order | None:
    # If the amount does not change, neither do the terms: only a quote computes a new rate.
    amount = _read_amount(problems, sent.get("amount"))
    currency = read_currency(problems, sent, "currency")
    memo = read_text(problems, sent, "memo")
    if payee is None or amount is None or currency is None or not batch.currency:
        return None
    terms = kept or agree(world, batch, payee, amount, currency)
    if not (terms.source and terms.target):
        problems.invalid(
            "amount", f"Is nothing in {terms.source_currency} or {terms.target_currency}"
        )
    return Order(payee, amount, currency, memo, terms)


def _payee(world: World, problems: Problems, sent: Any) -> Recipient | None:
    # An incomplete recipient is accepted here; only the start requires an active one.
    if not isinstance(sent, dict | None):
        problems.invalid("recipient", "Must be an object")
        return None
    wanted = (sent or {}).get("id")
    if blank(wanted):
        problems.empty("recipient.id")
        return None
    try:
        found = world.recipient(wanted) if isinstance(wanted, str) else None
    except Refusal:
        found = None
    if found is None:
        _unknown(world, problems)
    elif found.status in REFUSED:
        problems.invalid_status("recipient.id", f"Recipient is {found.status}")
    return found


def _unknown(world: World, problems: Problems) -> None:
    if world.switches.unknown_recipient == 404:
        problems.not_found("recipient.id", "Recipient")
    else:
        problems.invalid("recipient.id", "Recipient does not exist")


def _read_amount(problems: Problems, sent: Any) -> Decimal | None:
    if blank(sent):
        problems.empty("amount")
    elif wrong := money.amount(sent):
        problems.invalid("amount", wrong)
    else:
        return Decimal(sent)
    return None


def read_currency(problems: Problems, sent: JsonObject, name: str) -> str | None:
    code = sent.get(name)
    if blank(code):
        problems.empty(name)
    elif wrong := values.currency(code):
        problems.invalid(name, wrong)
    elif code not in rates.CURRENCIES:
        problems.invalid(name, "The service does not pay in it")
    else:
        return str(code)
    return None


def read_text(problems: Problems, sent: JsonObject, name: str) -> str:
    value = sent.get(name)
    if value is not None and (wrong := values.text(value)):
        problems.invalid(name, wrong)
    return str(value or "")
