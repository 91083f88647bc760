"""Parsing of batches and payments in request bodies (sections 4.3 and 4.4)."""

import re
from decimal import Decimal
from typing import Any

from gateway.simulator import money, views
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient
from gateway.simulator.payments import (
    PaymentOrder,
    SentAmount,
    create_changed_order,
    create_order,
    iter_array_objects,
    parse_currency,
    parse_text,
)
from gateway.simulator.state import Batch, Payment, PaymentTerms, Recipient
from gateway.simulator.values import is_blank


def parse_batch_currency(request: AcceptedRequest, problems: Problems) -> str:
    """Parses a new batch's currency, or takes it from the first payment that has one."""
    body = request.body
    currency = lenient.normalize_currency(body.get("sourceCurrency"))
    if not is_blank(currency):
        return parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency") or ""
    # Payments that disagree are reported with each payment, when it is parsed.
    given_currencies = [
        (nested_problems, code)
        for nested_problems, entry in iter_array_objects(Problems(), body, "payments")
        if not is_blank(code := lenient.normalize_currency(entry.get("sourceCurrency")))
    ]
    if not given_currencies:
        problems.add_empty_field("sourceCurrency")
        return ""
    first_problems, code = given_currencies[0]
    nested_problems = Problems(problems.collected, first_problems.prefix)
    return parse_currency(nested_problems, {"sourceCurrency": code}, "sourceCurrency") or ""


def parse_changed_currency(request: AcceptedRequest, problems: Problems, batch: Batch) -> str:
    currency = lenient.normalize_currency(request.body.get("sourceCurrency"))
    currency = batch.currency if is_blank(currency) else currency
    parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency")
    if currency != batch.currency and batch.payments:
        problems.add_invalid_field(
            "sourceCurrency", "Can be changed only while there are no payments"
        )
    return str(currency)


def parse_payment_order(
    request: AcceptedRequest, problems: Problems, body: JsonObject, batch: Batch
) -> PaymentOrder | None:
    """Parses a new payment; the result is valid only if no problem was added."""
    payee = _resolve_recipient(request, problems, body)
    _check_source_currency(problems, body, batch.currency)
    amount = _parse_amount(problems, body, batch.currency, is_required=True)
    memo = parse_text(problems, body, "memo")
    if payee is None or amount is None or not batch.currency:
        return None
    order = create_order(problems, batch, payee, amount, memo)
    if body["recipient"].get("id") is None:
        _check_minimum_amount(problems, payee, amount)
    return order


def parse_payment_change(
    _request: AcceptedRequest, problems: Problems, body: JsonObject, payment: Payment
) -> PaymentOrder:
    """Parses a changed payment; recipient and source currency cannot change (section 4.4).

    Without another amount the terms stay, because only quotes compute new rates (section 1, item
    6). An amount that equals the shown one is no change: clients send whole objects back.
    """
    body = _remove_unchanged_amounts(body, payment.terms)
    # After the unchanged amounts are gone: a whole object sent back has both.
    amount = _parse_amount(problems, body, payment.batch.currency, is_required=False)
    memo = parse_text(problems, {"memo": payment.memo, **body}, "memo")
    return create_changed_order(problems, payment, amount, memo)


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
    text = value.written if isinstance(value, lenient.JsonNumber) else str(value)
    return bool(re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)) and Decimal(text) == amount


def _check_source_currency(problems: Problems, body: JsonObject, currency: str) -> None:
    # Each payment may name the source currency, but a batch has only one.
    sent_currency = lenient.normalize_currency(body.get("sourceCurrency"))
    if sent_currency is not None and currency and sent_currency != currency:
        problems.add_invalid_field("sourceCurrency", "Is not the batch's")


def _parse_amount(
    problems: Problems, body: JsonObject, currency: str, *, is_required: bool
) -> SentAmount | None:
    names = ("sourceAmount", "targetAmount")
    field_names = [name for name in names if not is_blank(body.get(name))]
    if len(field_names) == 2:
        problems.add_invalid_field(
            "targetAmount", "Only one of sourceAmount and targetAmount can be given"
        )
        return None
    if not field_names:
        if is_required:
            problems.add_empty_field("sourceAmount")
        return None
    field_name = field_names[0]
    # The original text, because 1.50 is a valid amount and 1.5 is not.
    value: Any = getattr(body[field_name], "written", body[field_name])
    error = money.validate_amount(value)
    if error:
        problems.add_invalid_field(
            field_name, "Must be a positive number with two decimals or none"
        )
    amount_currency: str | None = currency
    if field_name == "targetAmount":
        code = {"targetCurrency": lenient.normalize_currency(body.get("targetCurrency"))}
        amount_currency = parse_currency(problems, code, "targetCurrency")
    if error or amount_currency is None:
        return None
    return SentAmount(field_name, Decimal(value), amount_currency)


def _resolve_recipient(
    request: AcceptedRequest, problems: Problems, body: JsonObject
) -> Recipient | None:
    reference = lenient.parse_object(problems, body, "recipient")
    if body.get("recipient") is not None and not isinstance(body["recipient"], dict):
        return None
    field_name = (
        "email" if reference.get("id") is None and reference.get("email") is not None else "id"
    )
    value = reference.get(field_name)
    if is_blank(value):
        problems.add_empty_field("recipient.id")
        return None
    find_matches = _find_by_email if field_name == "email" else _find_by_client_id
    matches = find_matches(request, value)
    # Paying one of several recipients with the same address would be a guess.
    if len(matches) != 1:
        message = (
            "Recipient does not exist" if not matches else "Is the address of several recipients"
        )
        problems.add_invalid_field(f"recipient.{field_name}", message)
        return None
    if matches[0].status in ("suspended", "archived"):
        problems.add_problem(
            "invalid_status", f"recipient.{field_name}", "Recipient cannot be paid"
        )
    return matches[0]


def _find_by_client_id(request: AcceptedRequest, client_id: Any) -> list[Recipient]:
    service_id = request.resolve_id(client_id) if isinstance(client_id, str) else ""
    recipients = request.tenant.recipients
    return [recipients[service_id]] if service_id in recipients else []


def _find_by_email(request: AcceptedRequest, address: Any) -> list[Recipient]:
    """Finds recipients by the exact address, without deleted ones."""
    recipients = request.tenant.recipients.values()
    return [
        recipient
        for recipient in recipients
        if recipient.fields["email"] == address and not recipient.is_archived
    ]


def _check_minimum_amount(problems: Problems, payee: Recipient, amount: SentAmount) -> None:
    # Only for recipients given by email, which this request looked up; others are checked at the
    # start.
    minimum = views.find_route_minimum(payee)
    is_recipient_currency = amount.currency == payee.fields.get("primaryCurrency")
    if minimum is not None and is_recipient_currency and amount.value < Decimal(minimum):
        problems.add_invalid_field(amount.field_name, f"Is less than the least amount, {minimum}")
