"""Changes of batches before the start, starting and finishing (current interface, sections 1 to 4.3).

Editing and deleting follow the other document (legacy interface, sections 4.3 and 4.4).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

from gateway.simulator import money, payments, views
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.errors import ApiError, Problem, Problems, build_invalid_status_error
from gateway.simulator.state import Batch, Payment, Tenant


def insert_batch(tenant: Tenant, batch: Batch, drafts: Iterable[Payment]) -> None:
    """Gives a validated batch its id, and inserts it with its payments."""
    batch.id = tenant.create_id("B-", tenant.options.batch_id_length)
    tenant.batches[batch.id] = batch
    for payment in drafts:
        payments.insert_payment(tenant, batch, payment)


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
        payments.renew_payment_terms(payment)
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
