"""Builds the legacy interface's answers about batches and their payments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mappings import money, objects, paging
from mappings.batch_views import BATCH, Batch, drop_nulls
from mappings.effects import JSON
from mappings.lazy_sequences import iterate_field, map_rows, materialize_rows
from mappings.matching import Payment
from mappings.objects import build_legacy_payment, format_payout_method_display


def build_legacy_batch(batch: Batch) -> dict[str, JSON]:
    """Builds a ``Batch`` (legacy interface, section 2)."""
    answer = BATCH.translate_to_legacy(
        {**batch.facts, **drop_nulls(batch.service_fields), "id": batch.id}
    )
    # The sum agrees with the payments that the client sees; the service's total may not.
    total = batch.merged_payments.amount
    amount = money.normalize_amount(batch.service_fields.get("amount"))
    answer["status"] = batch.status
    answer["sentAt"] = batch.send_time
    answer["amount"] = (
        money.format_amount(total) if total is not None and batch.has_known_payments else amount
    )
    count = batch.service_fields.get("totalPayments")
    if batch.has_known_payments:
        count = len(batch.merged_payments)
    answer["totalPayments"] = count
    answer["currency"] = batch.currency
    return answer


def build_batch_list_item(batch: Batch) -> dict[str, JSON]:
    """Builds a ``ListedBatch``, whose payments may not have been read."""
    answer = build_legacy_batch(batch)
    if (deal_id := batch.service_fields.get("dealId")) is not None:
        answer["dealId"] = deal_id
    # A list shows only totals; no payments here means that none were read.
    if batch.merged_payments or batch.service_fields.get("totalPayments") is None:
        return answer
    amount = money.parse_amount(batch.service_fields.get("amount"))
    answer["amount"] = money.format_amount(amount) if amount is not None else answer["amount"]
    answer["totalPayments"] = batch.service_fields["totalPayments"]
    return answer


def build_legacy_batch_with_payments(
    batch: Batch, recipient_facts: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds the answer to a batch read by id, with all of its payments on one page."""
    items = materialize_rows(
        map_rows(lambda payment: build_payment_list_item(payment, recipient_facts), batch.payments)
    )
    meta = paging.build_meta(1, min(len(items), 1), len(items))
    return {**build_legacy_batch(batch), "payments": {"payments": items, "meta": meta}}


def build_payment_list_item(
    payment: Payment, recipient_facts: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds a payment of a batch listing, with its reduced recipient.

    ``recipient_facts`` are the stored facts of recipients, by id: their status derives from them.
    """
    # The stored recipient is as it was when the payment was requested, so it comes second.
    method = payment.get("method") or (payment.get("recipient") or {}).get("payoutMethod")
    return {
        **build_legacy_payment(
            payment, build_reduced_recipient(payment.get("recipient") or {}, recipient_facts)
        ),
        "method": method,
        "methodDisplay": format_payout_method_display(method),
        "isSupplyPayment": bool(payment.get("isSupplyPayment")),
    }


def iterate_recipient_ids(payments: Sequence[Payment]) -> Iterator[str]:
    """Iterates over the recipient ids of the payments that show one."""
    recipients = (recipient or {} for recipient in iterate_field(payments, "recipient"))
    return (str(recipient["id"]) for recipient in recipients if recipient.get("id"))


def build_reduced_recipient(
    recipient: Mapping[str, JSON], recipient_facts: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds the reduced recipient of batch listings."""
    country = extract_recipient_country(recipient)
    return {
        "id": recipient.get("id"),
        "referenceId": recipient.get("referenceId"),
        "email": recipient.get("email"),
        "name": recipient.get("name"),
        "status": objects.choose_legacy_recipient_status(
            recipient, recipient_facts.get(str(recipient.get("id")), {})
        ),
        "country": country,
        "countryCode": country,
    }


def extract_recipient_country(recipient: Mapping[str, JSON]) -> JSON:
    """Returns the country of a recipient, reduced or in full; None if it has none."""
    country = recipient.get("country") or recipient.get("countryCode")
    return country or (recipient.get("address") or {}).get("country")
