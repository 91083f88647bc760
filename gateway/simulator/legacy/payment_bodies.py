"""Parsing of batches and payments in request bodies (sections 4.3 and 4.4)."""

import re
from decimal import Decimal
from typing import Any

from gateway.simulator import batches, money, views
from gateway.simulator.batches import SentAmount
from gateway.simulator.legacy import lenient
from gateway.simulator.requests import AcceptedRequest
from gateway.simulator.state import Batch, Payment, PaymentTerms, Recipient
from gateway.simulator.validation import JsonObject, Problems, is_blank


def parse_batch_currency(request: AcceptedRequest, problems: Problems) -> str:
    """Parses a new batch's currency, or takes it from the first payment that has one."""
    sent_currencies = [(problems, lenient.normalize_currency(request.body.get("sourceCurrency")))]
    # Payments that disagree are reported with each payment, when it is parsed.
    for nested_problems, entry in Problems().iter_objects(request.body, "payments"):
        code = lenient.normalize_currency(entry.get("sourceCurrency"))
        sent_currencies.append((Problems(problems.collected, nested_problems.prefix), code))
    found = (sent for sent in sent_currencies if not is_blank(sent[1]))
    problems, code = next(found, sent_currencies[0])
    return batches.parse_currency(problems, "sourceCurrency", code)


def parse_changed_currency(request: AcceptedRequest, problems: Problems, batch: Batch) -> str:
    currency = lenient.normalize_currency(request.body.get("sourceCurrency"))
    currency = batch.currency if is_blank(currency) else currency
    batches.parse_currency(problems, "sourceCurrency", currency)
    if currency != batch.currency and batch.payments:
        message = "Can be changed only while there are no payments"
        problems.add_invalid_field("sourceCurrency", message)
    return str(currency)


def parse_payment(
    request: AcceptedRequest, problems: Problems, body: JsonObject, batch: Batch
) -> Payment | None:
    """Parses a new payment; the result is valid only if no problem was added."""
    payee = _resolve_recipient(request, problems, body)
    # Each payment may name the source currency, but a batch has only one.
    source_currency = lenient.normalize_currency(body.get("sourceCurrency"))
    if batch.currency and source_currency not in (None, batch.currency):
        problems.add_invalid_field("sourceCurrency", "Is not the batch's")
    amount = _parse_amount(problems, body, batch.currency, is_required=True)
    memo = batches.parse_text(problems, body, "memo")
    payment = batches.build_draft_payment(problems, batch, payee, amount, memo)
    if payment is not None and amount is not None and body["recipient"].get("id") is None:
        _check_minimum_amount(problems, payment.recipient, amount)
    return payment


def parse_payment_change(
    _request: AcceptedRequest, problems: Problems, body: JsonObject, payment: Payment
) -> Payment:
    """Parses a changed payment; recipient and source currency cannot change (section 4.4).

    Without another amount the terms stay, because only quotes compute new rates (section 1, item
    6). An amount that equals the shown one is no change: clients send whole objects back.
    """
    body = _remove_unchanged_amounts(body, payment.terms)
    # After the unchanged amounts are gone: a whole object sent back has both.
    amount = _parse_amount(problems, body, payment.batch.currency, is_required=False)
    memo = batches.parse_text(problems, {"memo": payment.memo, **body}, "memo")
    return batches.copy_changed_payment(problems, payment, amount, memo)


def _remove_unchanged_amounts(body: JsonObject, terms: PaymentTerms) -> JsonObject:
    remaining_fields = dict(body)
    if _is_same_amount(remaining_fields.get("sourceAmount"), terms.source_amount):
        del remaining_fields["sourceAmount"]
    currency = lenient.normalize_currency(remaining_fields.get("targetCurrency"))
    if currency in (None, terms.target_currency) and _is_same_amount(
        remaining_fields.get("targetAmount"), terms.target_amount
    ):
        del remaining_fields["targetAmount"]
    return remaining_fields


def _is_same_amount(value: Any, amount: Decimal) -> bool:
    text = str(getattr(value, "written", value))
    return bool(re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)) and Decimal(text) == amount


def _parse_amount(
    problems: Problems, body: JsonObject, currency: str, *, is_required: bool
) -> SentAmount | None:
    names = [name for name in ("sourceAmount", "targetAmount") if not is_blank(body.get(name))]
    if len(names) == 2:
        message = "Only one of sourceAmount and targetAmount can be given"
        problems.add_invalid_field("targetAmount", message)
    if not names and is_required:
        problems.add_empty_field("sourceAmount")
    if len(names) != 1:
        return None
    # The original text, because 1.50 is a valid amount and 1.5 is not.
    value: Any = getattr(body[names[0]], "written", body[names[0]])
    error = money.find_amount_problem(value)
    if error:
        problems.add_invalid_field(names[0], "Must be a positive number with two decimals or none")
    if names[0] == "targetAmount":
        code = lenient.normalize_currency(body.get("targetCurrency"))
        currency = batches.parse_currency(problems, "targetCurrency", code)
    return SentAmount(names[0], Decimal(value), currency) if currency and not error else None


def _resolve_recipient(
    request: AcceptedRequest, problems: Problems, body: JsonObject
) -> Recipient | None:
    reference = lenient.parse_object(problems, body, "recipient")
    if not isinstance(body.get("recipient"), dict | None):
        return None
    is_email = reference.get("id") is None and reference.get("email") is not None
    name = "email" if is_email else "id"
    value, recipients = reference.get(name), request.tenant.recipients
    if is_blank(value):
        problems.add_empty_field("recipient.id")
        return None
    if is_email:  # Exact, and without deleted recipients.
        matches = [
            recipient
            for recipient in recipients.values()
            if recipient.fields["email"] == value and not recipient.is_archived
        ]
    else:
        service_id = request.resolve_id(str(value))
        matches = [recipients[service_id]] if service_id in recipients else []
    return batches.select_payee(problems, f"recipient.{name}", matches, "invalid_field")


def _check_minimum_amount(problems: Problems, payee: Recipient, amount: SentAmount) -> None:
    # Only for recipients given by email, which this request looked up; others are checked at the
    # start.
    minimum = Decimal(views.find_route_minimum(payee) or 0)
    if amount.currency == payee.fields.get("primaryCurrency") and amount.value < minimum:
        problems.add_invalid_field(amount.field_name, f"Is less than the least amount, {minimum}")
