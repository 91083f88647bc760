"""Lists of payments of batches and of seeded payments (section 4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.simulator import batch_views, views
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Batch, Payment, Recipient, Tenant, format_timestamp


@dataclass(frozen=True)
class ListedPayment:
    """A payment in a list.

    `build_view` builds its JSON and is called only for entries of the requested page. `source` is a
    payment of a batch, or the fields of a seeded one.
    """

    id: str
    memo: str
    created_at: str
    payee: Recipient
    source: Payment | JsonObject
    build_view: Callable[[], JsonObject]

    def build(self) -> JsonObject:
        return self.build_view()


def list_recipient_payments(tenant: Tenant, payee: Recipient) -> list[ListedPayment]:
    payments = [payment for payment in tenant.payments.values() if payment.recipient is payee]
    return _merge_newest_first(tenant, payments, _iter_seeded_payments(tenant, payee))


def list_all_payments(tenant: Tenant, search: str) -> list[ListedPayment]:
    seeded_payments = [
        payment
        for payee in tenant.recipients.values()
        for payment in _iter_seeded_payments(tenant, payee)
    ]
    newest_first = _merge_newest_first(tenant, list(tenant.payments.values()), seeded_payments)
    return [payment for payment in newest_first if matches_search(payment, search, payment.id)]


def list_batch_payments(tenant: Tenant, batch: Batch, search: str) -> list[ListedPayment]:
    """Lists the payments of a batch in the order in which they were added."""
    listed_payments = (
        _build_listed_payment(tenant, payment, batch_views.build_listed_payment)
        for payment in batch.payments.values()
    )
    return [
        listed_payment
        for listed_payment in listed_payments
        if matches_search(listed_payment, search, listed_payment.id)
    ]


def require_payment(tenant: Tenant, payment_id: str) -> ListedPayment:
    """Returns a payment of a batch or a seeded one. Raises ApiError `not_found`."""
    if payment_id in tenant.payments:
        return _build_listed_payment(tenant, tenant.payments[payment_id])
    # Seeded payments are stored with their recipients, because they belong to no batch.
    for payee in tenant.recipients.values():
        for seeded_payment in _iter_seeded_payments(tenant, payee):
            if seeded_payment.id == payment_id:
                return seeded_payment
    raise build_not_found_error("Payment")


def _build_listed_payment(
    tenant: Tenant,
    payment: Payment,
    build_payment: Callable[[Tenant, Payment], JsonObject] = batch_views.build_payment,
) -> ListedPayment:
    created = format_timestamp(payment.created_at)
    return ListedPayment(
        payment.id,
        payment.memo,
        created,
        payment.recipient,
        payment,
        lambda: build_payment(tenant, payment),
    )


def _iter_seeded_payments(tenant: Tenant, payee: Recipient) -> Iterable[ListedPayment]:
    """Yields a recipient's seeded payments; they show the current recipient or their own."""

    def create_builder(payment: JsonObject) -> Callable[[], JsonObject]:
        return lambda: {"recipient": views.build_recipient(tenant, payee), **payment}

    # A function per payment below: a lambda in the loop would see only the last one.
    for seeded_payment in payee.payments:
        memo, created = (
            str(seeded_payment.get("memo", "")),
            str(seeded_payment.get("createdAt", "")),
        )
        yield ListedPayment(
            str(seeded_payment.get("id")),
            memo,
            created,
            payee,
            seeded_payment,
            create_builder(seeded_payment),
        )


def _merge_newest_first(
    tenant: Tenant, payments: list[Payment], seeded_payments: Iterable[ListedPayment]
) -> list[ListedPayment]:
    # Reversed before a stable sort: of payments with equal dates, the last created comes first.
    listed_payments = [_build_listed_payment(tenant, payment) for payment in reversed(payments)]
    return sorted(
        [*listed_payments, *seeded_payments], key=lambda payment: payment.created_at, reverse=True
    )


def matches_search(payment: ListedPayment, search: str, shown_id: str) -> bool:
    # The document does not say which fields `search` covers.
    fields = payment.payee.fields
    search_texts = (
        shown_id,
        payment.memo,
        fields["name"],
        fields["email"],
        fields.get("referenceId"),
    )
    return any(search.casefold() in str(text or "").casefold() for text in search_texts)
