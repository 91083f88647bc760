"""Lists of payments of batches and of seeded payments (section 4)."""

from collections.abc import Iterable
from typing import NamedTuple

from gateway.simulator import batch_views, views
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Batch, Payment, Recipient, Tenant, format_timestamp


class ListedPayment(NamedTuple):
    """A payment in a list. `source` is a payment of a batch, or the fields of a seeded one."""

    id: str
    memo: str
    created_at: str
    payee: Recipient
    source: Payment | JsonObject


def build_full_payment(tenant: Tenant, payment: ListedPayment) -> JsonObject:
    """Builds a payment with its recipient in its current state, or the seeded payment's own."""
    if isinstance(payment.source, Payment):
        return batch_views.build_payment(tenant, payment.source)
    return {"recipient": views.build_recipient(tenant, payment.payee), **payment.source}


def list_recipient_payments(tenant: Tenant, payee: Recipient) -> list[ListedPayment]:
    payments = [payment for payment in tenant.payments.values() if payment.recipient is payee]
    return _merge_newest_first(payments, _iter_seeded_payments([payee]))


def list_all_payments(tenant: Tenant) -> list[ListedPayment]:
    seeded_payments = _iter_seeded_payments(tenant.recipients.values())
    return _merge_newest_first(tenant.payments.values(), seeded_payments)


def list_batch_payments(batch: Batch) -> list[ListedPayment]:
    """Lists the payments of a batch in the order in which they were added."""
    return [_list_payment(payment) for payment in batch.payments.values()]


def require_payment(tenant: Tenant, payment_id: str) -> ListedPayment:
    """Returns a payment of a batch or a seeded one. Raises ApiError `not_found`."""
    if payment_id in tenant.payments:
        return _list_payment(tenant.payments[payment_id])
    # Seeded payments are stored with their recipients, because they belong to no batch.
    for seeded_payment in _iter_seeded_payments(tenant.recipients.values()):
        if seeded_payment.id == payment_id:
            return seeded_payment
    raise build_not_found_error("Payment")


def _list_payment(payment: Payment) -> ListedPayment:
    created = format_timestamp(payment.created_at)
    return ListedPayment(payment.id, payment.memo, created, payment.recipient, payment)


def _iter_seeded_payments(recipients: Iterable[Recipient]) -> Iterable[ListedPayment]:
    for payee in recipients:
        for payment in payee.payments:
            id_, memo, created = (
                str(payment.get(name, "")) for name in ("id", "memo", "createdAt")
            )
            yield ListedPayment(id_, memo, created, payee, payment)


def _merge_newest_first(
    payments: Iterable[Payment], seeded_payments: Iterable[ListedPayment]
) -> list[ListedPayment]:
    # Reversed before a stable sort: of payments with equal dates, the last created comes first.
    listed_payments = [_list_payment(payment) for payment in payments][::-1]
    return sorted(
        [*listed_payments, *seeded_payments], key=lambda payment: payment.created_at, reverse=True
    )


def matches_search(payment: ListedPayment, search: str, shown_id: str) -> bool:
    # The document does not say which fields `search` covers.
    fields = payment.payee.fields
    texts = (
        shown_id,
        payment.memo,
        *(fields.get(name) for name in ("name", "email", "referenceId")),
    )
    return any(search.casefold() in str(text or "").casefold() for text in texts)
