"""Batches and payments: terms, validation, changes, starting (current interface, sections 1 to 4.3).

Editing and deleting follow the other document (legacy interface, sections 4.3 and 4.4).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from gateway.simulator import money, validation, views
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.state import Batch, Payment, PaymentTerms, Recipient, Tenant
from gateway.simulator.validation import (
    ApiError,
    JsonObject,
    Problem,
    Problems,
    build_invalid_status_error,
    is_blank,
)


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
    account, source, target = payee.primary_account, batch.currency, currency
    if currency == source and account and account.fields["currency"] in money.CURRENCIES:
        target = account.fields["currency"]
    method = account.type if account else None
    quotes = batch.quote_count if method == BANK_TRANSFER else 0
    rate = money.compute_exchange_rate(source, target, quotes)
    if currency == source:
        source_amount = amount
        target_amount = money.round_to_cents(money.EXACT_CONTEXT.multiply(amount, rate))
    else:
        # The target amount is fixed; the rate decides what the merchant pays.
        source_amount = money.round_to_cents(money.EXACT_CONTEXT.divide(amount, rate))
        target_amount = amount
    fee = Decimal(views.find_payment_fee(payee))
    return PaymentTerms(method, source_amount, source, target_amount, target, rate, fee)


@dataclass(frozen=True)
class SentAmount:
    """An amount of a request; `field_name` is the field that contained it."""

    field_name: str
    value: Decimal
    currency: str


def parse_payment(
    tenant: Tenant, problems: Problems, body: JsonObject, batch: Batch
) -> Payment | None:
    """Parses a new payment; the result is valid only if no problem was added."""
    payee = _resolve_recipient(tenant, problems, body.get("recipient"))
    amount = _parse_amount(problems, _translate_legacy_amount_fields(body, batch))
    memo = parse_text(problems, body, "memo")
    return build_draft_payment(problems, batch, payee, amount, memo)


def build_draft_payment(
    problems: Problems, batch: Batch, payee: Recipient | None, amount: SentAmount | None, memo: str
) -> Payment | None:
    """Builds a payment without id and dates, which `insert_payment` sets.

    Returns None if a part of it is missing, for which there is a problem then.
    """
    if payee is None or amount is None or not batch.currency:
        return None
    terms = compute_payment_terms(batch, payee, amount.value, amount.currency)
    _check_terms(problems, amount, terms)
    dates = (batch.created_at, batch.created_at)
    return Payment("", batch, payee, amount.value, amount.currency, memo, terms, *dates)


def _check_terms(problems: Problems, amount: SentAmount, terms: PaymentTerms) -> None:
    if not (terms.source_amount and terms.target_amount):
        currencies = f"{terms.source_currency} or {terms.target_currency}"
        problems.add_invalid_field(amount.field_name, f"Is nothing in {currencies}")


def parse_payment_change(problems: Problems, body: JsonObject, payment: Payment) -> Payment:
    """Parses a changed payment; its recipient cannot change (legacy interface, section 4.4)."""
    previous_fields = {
        "amount": money.format_amount(payment.amount),
        "currency": payment.currency,
        "memo": payment.memo,
    }
    sent_fields = _translate_legacy_amount_fields(body, payment.batch)
    fields, amount = {**previous_fields, **sent_fields}, None
    if {"amount", "currency"} & sent_fields.keys():
        amount = _parse_amount(problems, fields)
    return copy_changed_payment(problems, payment, amount, parse_text(problems, fields, "memo"))


def copy_changed_payment(
    problems: Problems, payment: Payment, amount: SentAmount | None, memo: str
) -> Payment:
    """Without an amount the terms stay, because only quotes compute new rates."""
    copy = replace(payment, memo=memo)
    if amount is not None:
        copy.amount, copy.currency = amount.value, amount.currency
        renew_payment_terms(copy)
        _check_terms(problems, amount, copy.terms)
    return copy


def _translate_legacy_amount_fields(body: JsonObject, batch: Batch) -> JsonObject:
    # Clients of inferred paths send the payloads of the earlier document.
    if body.get("sourceAmount") is not None:
        # The body last: a field of the current document takes precedence.
        return {"amount": body["sourceAmount"], "currency": batch.currency, **body}
    if body.get("targetAmount") is not None:
        return {"amount": body["targetAmount"], "currency": body.get("targetCurrency"), **body}
    return body


def _resolve_recipient(tenant: Tenant, problems: Problems, value: Any) -> Recipient | None:
    if not isinstance(value, dict | None):
        problems.add_invalid_field("recipient", "Must be an object")
        return None
    recipient_id = (value or {}).get("id")
    if is_blank(recipient_id):
        problems.add_empty_field("recipient.id")
        return None
    recipient = tenant.recipients.get(str(recipient_id))
    matches = [recipient] if recipient else []
    return select_payee(problems, "recipient.id", matches, unknown_code="not_found")


def select_payee(
    problems: Problems, field_name: str, matches: list[Recipient], unknown_code: str
) -> Recipient | None:
    """Returns the only match, if it can be paid."""
    # Paying one of several recipients with the same address would be a guess.
    if len(matches) != 1:
        message = "Is the address of several recipients" if matches else "Recipient does not exist"
        problems.add_problem(unknown_code, field_name, message)
        return None
    # An incomplete recipient is accepted here; only the start requires an active one.
    if matches[0].status in ("suspended", "archived"):
        problems.add_problem("invalid_status", field_name, f"Recipient is {matches[0].status}")
    return matches[0]


def _parse_amount(problems: Problems, body: JsonObject) -> SentAmount | None:
    value: Any = body.get("amount")
    problems.check_required("amount", value, money.find_amount_problem)
    currency = parse_currency(problems, "currency", body.get("currency"))
    if money.find_amount_problem(value) or not currency:
        return None
    return SentAmount("amount", Decimal(value), currency)


def parse_currency(problems: Problems, field_name: str, code: Any) -> str:
    """Returns a currency's code, or an empty text if a problem was added."""
    is_supported = isinstance(code, str) and code in money.CURRENCIES
    message = "Must be the ISO 4217 code of a currency in which the service pays"
    problems.check_required(field_name, code, lambda _: None if is_supported else message)
    return code if is_supported else ""


def parse_text(problems: Problems, body: JsonObject, field_name: str) -> str:
    value = body.get(field_name)
    problems.check(
        field_name, value, validation.create_nullable_check(validation.find_text_problem)
    )
    return str(value or "")


def insert_payment(tenant: Tenant, batch: Batch, payment: Payment) -> None:
    payment.id = tenant.create_id("P-", tenant.options.payment_id_length)
    # The batch: of an edited one, the payment has been checked against a copy.
    payment.batch, payment.created_at = batch, tenant.now()
    payment.updated_at = batch.updated_at = payment.created_at
    # In two indexes: payments are also read by their id alone.
    batch.payments[payment.id] = tenant.payments[payment.id] = payment


def replace_payment(tenant: Tenant, payment: Payment, changed_copy: Payment) -> None:
    vars(payment).update(vars(changed_copy))
    payment.updated_at = payment.batch.updated_at = tenant.now()


def remove_payment(tenant: Tenant, payment: Payment) -> None:
    # A payment is in two indexes: of its batch, and of its tenant.
    del payment.batch.payments[payment.id], tenant.payments[payment.id]
    payment.batch.updated_at = tenant.now()


def matches_search(payment: Payment, search: str, shown_id: str) -> bool:
    # The document does not say which fields `search` covers.
    fields = payment.recipient.fields
    names = (fields.get(name) for name in ("name", "email", "referenceId"))
    texts = (shown_id, payment.memo, *names)
    return any(search.casefold() in str(text or "").casefold() for text in texts)


def insert_batch(tenant: Tenant, batch: Batch, drafts: Iterable[Payment]) -> None:
    """Gives a validated batch its id, and inserts it with its payments."""
    batch.id = tenant.create_id("B-", tenant.options.batch_id_length)
    tenant.batches[batch.id] = batch
    for payment in drafts:
        insert_payment(tenant, batch, payment)


def delete_batches(tenant: Tenant, batches: list[Batch]) -> None:
    """Deletes all of the batches, or none if one has been started. Raises ApiError."""
    # All are checked before the first one is deleted.
    for batch in batches:
        batch.check_open()
    for batch in batches:
        tenant.batches.pop(batch.id, None)
        for payment_id in batch.payments:
            tenant.payments.pop(payment_id, None)


def start_batch(tenant: Tenant, batch: Batch) -> None:
    """Validates and starts a batch. Raises ApiError."""
    batch.check_open()
    if not batch.payments:
        raise build_invalid_status_error("Batch has no payments")
    now = tenant.now()
    # A batch that was never quoted has no rates to expire.
    if batch.quote_expires_at is not None and now >= batch.quote_expires_at:
        raise ApiError(Problem("expired_quote", "Quote has expired"))
    problems = Problems()
    for position, payment in enumerate(batch.payments.values()):
        _check_payment_before_start(problems.create_nested_view(f"payments[{position}]."), payment)
    problems.raise_if_any()
    # Last, because problems of fields and recipients are reported first.
    if not tenant.has_balance_for_batch(batch):
        raise build_invalid_status_error("Balance does not cover the batch")
    batch.state = "processing"
    batch.sent_at = batch.updated_at = now
    # Debited now and not at the end, so that two batches cannot spend the same funds.
    tenant.add_to_balance(batch.currency, -batch.cost)
    tenant.processing_batches.append(batch)


def _check_payment_before_start(problems: Problems, payment: Payment) -> None:
    payee = payment.recipient
    if payee.status != "active":
        problems.add_problem("invalid_status", "recipient.id", f"Recipient is {payee.status}")
        return
    # The recipient had no account when the payment was created.
    if payment.terms.account_type is None:
        renew_payment_terms(payment)
    minimum = Decimal(views.find_route_minimum(payee) or 0)
    # The document does not show the currency of routeMinimum: here it is that of the amount.
    if payment.terms.account_type == BANK_TRANSFER and payment.amount < minimum:
        message = f"Must be at least {minimum}, the recipient's routeMinimum"
        problems.add_invalid_field("amount", message)


def finish_due_batches(tenant: Tenant) -> None:
    """Finishes the batches whose processing time has passed; called before each request."""
    duration = timedelta(seconds=tenant.options.processing_seconds)
    now = tenant.now()
    # A copy, because finished batches are removed in the loop.
    for batch in list(tenant.processing_batches):
        if batch.sent_at is not None and batch.sent_at + duration <= now:
            tenant.processing_batches.remove(batch)
            # The time at which it was due, not that of the request that noticed it.
            _finish_batch(tenant, batch, batch.sent_at + duration)


def _finish_batch(tenant: Tenant, batch: Batch, finished_at: datetime) -> None:
    """Sets the final statuses; failed and returned amounts are credited again, without fees.

    Legacy interface, section 1, item 5.
    """
    for payment in batch.payments.values():
        payment.status = payment.recipient.outcome
        payment.updated_at = finished_at
        payment.processed_at = None if payment.status == "failed" else finished_at
    payments = list(batch.payments.values())
    returned_payments = [entry for entry in payments if entry.status != "processed"]
    returned_amount = money.sum_amounts(entry.terms.source_amount for entry in returned_payments)
    tenant.add_to_balance(batch.currency, returned_amount)
    # Section 6: a batch is processed if at least one of its payments succeeded.
    batch.state = (
        "failed" if len(returned_payments) == len(payments) else tenant.options.processed_word
    )
    batch.completed_at = batch.updated_at = finished_at
