"""Parsing of payments in request bodies (sections 4.3 and 4.4)."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.simulator import money, quotes, views
from gateway.simulator.legacy import loose
from gateway.simulator.legacy.names import Names
from gateway.simulator.payment_rules import Order, read_currency, read_text
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Batch, Payment, Recipient, Terms
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject


@dataclass(frozen=True)
class Amount:
    """An amount of a request; `field_name` is the field that contained it."""

    name: str
    value: Decimal
    currency: str


def read(names: Names, problems: Problems, sent: JsonObject, batch: Batch) -> Order | None:
    """Parse a new payment; the result is valid only if no problem was added."""
    payee = _payee(names, problems, sent)
    _check_source_currency(problems, sent, batch.currency)
    amount = _read_amount(problems, sent, batch.currency, needed=True)
    memo = read_text(problems, sent, "memo")
    if payee is None or amount is None or not batch.currency:
        return None
    terms = _agree(names, problems, batch, payee, amount)
    if sent["recipient"].get("id") is None:
        _check_minimum(names, problems, payee, amount)
    return Order(payee, amount.value, amount.currency, memo, terms)


def read_change(
    names: Names, problems: Problems, sent: JsonObject, payment: Payment
) -> Order | None:
    """Parse a changed payment; recipient and source currency cannot change (section 4.4).

    Without another amount the terms stay, because only quotes compute new rates (section 1, item
    6). An amount that equals the shown one is no change: clients send whole objects back.
    """
    sent = _without_shown(sent, payment.terms)
    amount = _read_amount(problems, sent, payment.batch.currency, needed=False)
    memo = read_text(problems, {"memo": payment.memo, **sent}, "memo")
    if amount is None:
        return Order(payment.recipient, payment.amount, payment.currency, memo, payment.terms)
    terms = _agree(names, problems, payment.batch, payment.recipient, amount)
    return Order(payment.recipient, amount.value, amount.currency, memo, terms)


def _without_shown(sent: JsonObject, terms: Terms) -> JsonObject:
    left = dict(sent)
    if _is_amount(left.get("sourceAmount"), terms.source):
        del left["sourceAmount"]
    currency = loose.currency(left.get("targetCurrency"))
    if currency in (None, terms.target_currency) and _is_amount(
        left.get("targetAmount"), terms.target
    ):
        del left["targetAmount"]
    return left


def _is_amount(sent: Any, shown: Decimal) -> bool:
    text = sent.written if isinstance(sent, loose.Number) else str(sent)
    return bool(re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)) and Decimal(text) == shown


def _agree(
    names: Names, problems: Problems, batch: Batch, payee: Recipient, amount: Amount
) -> Terms:
    terms = quotes.agree(names.world, batch, payee, amount.value, amount.currency)
    if not (terms.source and terms.target):
        currencies = f"{terms.source_currency} or {terms.target_currency}"
        problems.invalid(amount.name, f"Is nothing in {currencies}")
    return terms


def _check_source_currency(problems: Problems, sent: JsonObject, currency: str) -> None:
    # Each payment may name the source currency, but a batch has only one.
    own = loose.currency(sent.get("sourceCurrency"))
    if own is not None and currency and own != currency:
        problems.invalid("sourceCurrency", "Is not the batch's")


def _read_amount(
    problems: Problems, sent: JsonObject, currency: str, *, needed: bool
) -> Amount | None:
    given = [name for name in ("sourceAmount", "targetAmount") if not blank(sent.get(name))]
    if len(given) == 2:
        problems.invalid("targetAmount", "Only one of sourceAmount and targetAmount can be given")
        return None
    if not given:
        if needed:
            problems.empty("sourceAmount")
        return None
    name = given[0]
    value = sent[name].written if isinstance(sent[name], loose.Number) else sent[name]
    # The original text, because 1.50 is a valid amount and 1.5 is not.
    wrong = money.amount(value)
    if wrong:
        problems.invalid(name, "Must be a positive number with two decimals or none")
    known = currency if name == "sourceAmount" else _read_target_currency(problems, sent)
    return None if wrong or known is None else Amount(name, Decimal(value), known)


def _read_target_currency(problems: Problems, sent: JsonObject) -> str | None:
    code = {"targetCurrency": loose.currency(sent.get("targetCurrency"))}
    return read_currency(problems, code, "targetCurrency")


def _payee(names: Names, problems: Problems, sent: JsonObject) -> Recipient | None:
    wanted = loose.inside(problems, sent, "recipient")
    if sent.get("recipient") is not None and not isinstance(sent["recipient"], dict):
        return None
    name = "email" if wanted.get("id") is None and wanted.get("email") is not None else "id"
    value = wanted.get(name)
    if blank(value):
        problems.empty("recipient.id")
        return None
    found = _by_email(names, value) if name == "email" else _by_id(names, value)
    if len(found) != 1:
        said = "Recipient does not exist" if not found else "Is the address of several recipients"
        problems.invalid(f"recipient.{name}", said)
        return None
    if found[0].status in ("suspended", "archived"):
        problems.invalid_status(f"recipient.{name}", "Recipient cannot be paid")
    return found[0]


def _by_id(names: Names, wanted: Any) -> list[Recipient]:
    real = names.real(wanted) if isinstance(wanted, str) else ""
    known = names.world.recipients
    return [known[real]] if real in known else []


def _by_email(names: Names, address: Any) -> list[Recipient]:
    """Find recipients by the exact address, without deleted ones."""
    everybody = names.world.recipients.values()
    return [each for each in everybody if each.fields["email"] == address and not each.archived]


def _check_minimum(names: Names, problems: Problems, payee: Recipient, amount: Amount) -> None:
    # Only for recipients given by email, which this request looked up; others are checked at the
    # start.
    least = views.minimum(names.world, payee)
    in_theirs = amount.currency == payee.fields.get("primaryCurrency")
    if least is not None and in_theirs and amount.value < least:
        problems.invalid(amount.name, f"Is less than the least amount, {least}")
