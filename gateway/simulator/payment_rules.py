"""Validation of payments (current interface, sections 2.1 and 4.3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.simulator import money, rates, values
from gateway.simulator.errors import ApiError, Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.quotes import compute_payment_terms
from gateway.simulator.state import Batch, Payment, PaymentTerms, Recipient, Tenant
from gateway.simulator.values import is_blank

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
        tenant, problems, _translate_legacy_amount_fields(body, batch), batch, payee
    )


def parse_payment_change(
    tenant: Tenant, problems: Problems, body: JsonObject, payment: Payment
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
        tenant,
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
    tenant: Tenant,
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
    terms = unchanged_terms or compute_payment_terms(tenant, batch, payee, amount, currency)
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
        _add_unknown_recipient_problem(tenant, problems)
    elif recipient.status in UNPAYABLE_STATUSES:
        problems.add_invalid_status("recipient.id", f"Recipient is {recipient.status}")
    return recipient


def _add_unknown_recipient_problem(tenant: Tenant, problems: Problems) -> None:
    if tenant.options.unknown_recipient == 404:
        problems.add_not_found("recipient.id", "Recipient")
    else:
        problems.add_invalid_field("recipient.id", "Recipient does not exist")


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
