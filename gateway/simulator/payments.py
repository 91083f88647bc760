"""Payments: their terms, validation and changes (current interface, sections 1, 2.1 and 4.3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from gateway.simulator import money, rates, values, views
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.errors import ApiError, Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Batch, Payment, PaymentTerms, Recipient, Tenant
from gateway.simulator.values import is_blank


def generate_quote(tenant: Tenant, batch: Batch) -> None:
    """Generates a quote that replaces the previous one. Raises ApiError after the start."""
    batch.check_open()
    batch.quote_count += 1
    # The count first: it is part of the rate.
    for payment in batch.payments.values():
        renew_payment_terms(payment)
    now = tenant.now()
    batch.quote_expires_at = now + timedelta(seconds=tenant.options.quote_seconds)
    batch.updated_at = now


def renew_payment_terms(payment: Payment) -> None:
    payment.terms = compute_payment_terms(
        payment.batch, payment.recipient, payment.amount, payment.currency
    )


def compute_payment_terms(
    batch: Batch, payee: Recipient, amount: Decimal, currency: str
) -> PaymentTerms:
    """Computes a payment's terms.

    An amount in the batch's currency is the source amount, which arrives in the currency of the
    recipient's primary account. In another currency it is the target amount. Quotes change the
    rates of bank transfers only.
    """
    # A recipient without an account can be in a batch; only the start requires one.
    method = payee.primary_account.type if payee.primary_account else None
    quotes = batch.quote_count if method == BANK_TRANSFER else 0
    source, fee = batch.currency, views.compute_payment_fee(payee)
    if currency == source:
        target = _select_account_currency(payee, source)
        rate = rates.compute_exchange_rate(source, target, quotes)
        return PaymentTerms(
            method, amount, source, money.multiply_by_rate(amount, rate), target, rate, fee
        )
    rate = rates.compute_exchange_rate(source, currency, quotes)
    # The target amount is fixed; the rate decides what the merchant pays.
    return PaymentTerms(
        method, money.divide_by_rate(amount, rate), source, amount, currency, rate, fee
    )


def _select_account_currency(payee: Recipient, default: str) -> str:
    account = payee.primary_account
    is_supported = account is not None and account.fields["currency"] in rates.CURRENCIES
    return str(account.fields["currency"]) if account and is_supported else default


UNPAYABLE_STATUSES = ("suspended", "archived")


@dataclass(frozen=True)
class PaymentOrder:
    """A validated payment of a request."""

    recipient: Recipient
    amount: Decimal
    currency: str
    memo: str
    terms: PaymentTerms


def iter_array_objects(
    problems: Problems, body: JsonObject, field_name: str
) -> Iterable[tuple[Problems, JsonObject]]:
    """Yields the objects of an array in a body; a missing array counts as empty."""
    entries = body.get(field_name)
    if not isinstance(entries, list | None):
        problems.add_invalid_field(field_name, "Must be an array")
        return
    for position, entry in enumerate(entries or []):
        if isinstance(entry, dict):
            yield problems.create_nested_view(f"{field_name}[{position}]."), entry
        else:
            problems.add_invalid_field(f"{field_name}[{position}]", "Must be an object")


def parse_payment_order(
    tenant: Tenant, problems: Problems, body: JsonObject, batch: Batch
) -> PaymentOrder | None:
    """Parses a new payment; the result is valid only if no problem was added."""
    payee = _resolve_recipient(tenant, problems, body.get("recipient"))
    return _build_payment_order(
        problems, _translate_legacy_amount_fields(body, batch), batch, payee
    )


def parse_payment_change(
    problems: Problems, body: JsonObject, payment: Payment
) -> PaymentOrder | None:
    """Parses a changed payment; its recipient cannot change (legacy interface, section 4.4)."""
    previous_fields = {
        "amount": money.format_amount(payment.amount),
        "currency": payment.currency,
        "memo": payment.memo,
    }
    sent_fields = _translate_legacy_amount_fields(body, payment.batch)
    # A change of the memo alone keeps the rate that the client was quoted.
    unchanged_terms = None if {"amount", "currency"} & sent_fields.keys() else payment.terms
    merged_fields = {**previous_fields, **sent_fields}
    return _build_payment_order(
        problems,
        merged_fields,
        payment.batch,
        payment.recipient,
        unchanged_terms=unchanged_terms,
    )


def _translate_legacy_amount_fields(body: JsonObject, batch: Batch) -> JsonObject:
    # Clients of inferred paths send the payloads of the earlier document.
    if body.get("sourceAmount") is not None:
        # The body last: a field of the current document takes precedence.
        return {"amount": body["sourceAmount"], "currency": batch.currency, **body}
    if body.get("targetAmount") is not None:
        return {"amount": body["targetAmount"], "currency": body.get("targetCurrency"), **body}
    return body


def _build_payment_order(
    problems: Problems,
    body: JsonObject,
    batch: Batch,
    payee: Recipient | None,
    *,
    unchanged_terms: PaymentTerms | None = None,
) -> PaymentOrder | None:
    # If the amount does not change, neither do the terms: only a quote computes a new rate.
    amount = _parse_amount(problems, body.get("amount"))
    currency = parse_currency(problems, body, "currency")
    memo = parse_text(problems, body, "memo")
    if payee is None or amount is None or currency is None or not batch.currency:
        return None
    terms = unchanged_terms or compute_payment_terms(batch, payee, amount, currency)
    if not (terms.source_amount and terms.target_amount):
        problems.add_invalid_field(
            "amount", f"Is nothing in {terms.source_currency} or {terms.target_currency}"
        )
    return PaymentOrder(payee, amount, currency, memo, terms)


def _resolve_recipient(tenant: Tenant, problems: Problems, value: Any) -> Recipient | None:
    # An incomplete recipient is accepted here; only the start requires an active one.
    if not isinstance(value, dict | None):
        problems.add_invalid_field("recipient", "Must be an object")
        return None
    recipient_id = (value or {}).get("id")
    if is_blank(recipient_id):
        problems.add_empty_field("recipient.id")
        return None
    try:
        recipient = (
            tenant.require_recipient(recipient_id) if isinstance(recipient_id, str) else None
        )
    except ApiError:
        recipient = None
    if recipient is None:
        code = "not_found" if tenant.options.unknown_recipient == 404 else "invalid_field"
        problems.add_problem(code, "recipient.id", "Recipient does not exist")
    elif recipient.status in UNPAYABLE_STATUSES:
        problems.add_problem("invalid_status", "recipient.id", f"Recipient is {recipient.status}")
    return recipient


def _parse_amount(problems: Problems, value: Any) -> Decimal | None:
    if is_blank(value):
        problems.add_empty_field("amount")
    elif error := money.validate_amount(value):
        problems.add_invalid_field("amount", error)
    else:
        return Decimal(value)
    return None


def parse_currency(problems: Problems, body: JsonObject, field_name: str) -> str | None:
    code = body.get(field_name)
    if is_blank(code):
        problems.add_empty_field(field_name)
    elif error := values.find_currency_problem(code):
        problems.add_invalid_field(field_name, error)
    elif code not in rates.CURRENCIES:
        problems.add_invalid_field(field_name, "The service does not pay in it")
    else:
        return str(code)
    return None


def parse_text(problems: Problems, body: JsonObject, field_name: str) -> str:
    value = body.get(field_name)
    if value is not None and (error := values.find_text_problem(value)):
        problems.add_invalid_field(field_name, error)
    return str(value or "")


def create_payment(tenant: Tenant, batch: Batch, body: JsonObject) -> Payment:
    batch.check_open()
    problems = Problems()
    order = parse_payment_order(tenant, problems, body, batch)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    return insert_payment(tenant, batch, order)


def insert_payment(tenant: Tenant, batch: Batch, order: PaymentOrder) -> Payment:
    now = tenant.now()
    payment = Payment(
        tenant.generate_unused_id("P-", tenant.options.payment_id_length, tenant.payments),
        batch,
        order.recipient,
        order.amount,
        order.currency,
        order.memo,
        order.terms,
        created_at=now,
        updated_at=now,
    )
    # In two indexes: payments are also read by their id alone.
    batch.payments[payment.id] = tenant.payments[payment.id] = payment
    tenant.register_legacy_id(payment.id)
    batch.updated_at = now
    tenant.effects.creation_counts["payment"] += 1
    return payment


def update_payment(tenant: Tenant, payment: Payment, body: JsonObject) -> None:
    payment.batch.check_open()
    problems = Problems()
    order = parse_payment_change(problems, body, payment)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    apply_payment_order(tenant, payment, order)


def apply_payment_order(tenant: Tenant, payment: Payment, order: PaymentOrder) -> None:
    payment.amount, payment.currency = order.amount, order.currency
    payment.memo, payment.terms = order.memo, order.terms
    payment.updated_at = payment.batch.updated_at = tenant.now()


def delete_payment(tenant: Tenant, payment: Payment) -> None:
    payment.batch.check_open()
    remove_payment(tenant, payment)


def remove_payment(tenant: Tenant, payment: Payment) -> None:
    # A payment is in two indexes: of its batch, and of its tenant.
    del payment.batch.payments[payment.id], tenant.payments[payment.id]
    payment.batch.updated_at = tenant.now()


def require_payment(batch: Batch, payment_id: str) -> Payment:
    """Raises ApiError `not_found`, also for a payment of another batch."""
    if payment_id not in batch.payments:
        raise build_not_found_error("Payment")
    return batch.payments[payment_id]


def matches_search(payment: Payment, search: str, shown_id: str) -> bool:
    # The document does not say which fields `search` covers.
    fields = payment.recipient.fields
    names = (fields.get(name) for name in ("name", "email", "referenceId"))
    texts = (shown_id, payment.memo, *names)
    return any(search.casefold() in str(text or "").casefold() for text in texts)
