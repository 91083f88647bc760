"""Starting and finishing of batches (current interface, sections 1 and 3)."""

from datetime import datetime, timedelta

from gateway.simulator import balances, money, quotes, views
from gateway.simulator.account_rules import BANK
from gateway.simulator.books import Start
from gateway.simulator.refusals import Problem, Problems, Refusal, invalid_status
from gateway.simulator.state import Batch, Payment, World


def start(world: World, batch: Batch) -> None:
    """Validate and start a batch. Raises ApiError."""
    batch.must_be_open()
    if not batch.payments:
        raise invalid_status("Batch has no payments")
    now = world.now()
    if batch.quote_expires_at is not None and now >= batch.quote_expires_at:
        raise Refusal(Problem("expired_quote", "Quote has expired"))
    problems = Problems()
    for position, payment in enumerate(batch.payments.values()):
        _check(world, problems.within(f"payments[{position}]."), payment)
    problems.refuse_if_any()
    # Last, because problems of fields and recipients are reported first.
    if not balances.covers(world, batch):
        raise invalid_status("Balance does not cover the batch")
    batch.state = "processing"
    batch.sent_at = batch.updated_at = now
    # Debited now and not at the end, so that two batches cannot spend the same funds.
    balances.debit(world, batch.currency, batch.cost)
    world.processing.append(batch)
    world.books.starts.append(Start(world.merchant, world.environment, batch.id, world.seconds()))


def _check(world: World, problems: Problems, payment: Payment) -> None:
    payee = payment.recipient
    if payee.status != "active":
        problems.invalid_status("recipient.id", f"Recipient is {payee.status}")
        return
    if payment.terms.method is None:  # The recipient had no account when the payment was created.
        quotes.renew(world, payment)
    least = views.minimum(world, payee)
    # The document does not show the currency of routeMinimum: here it is that of the amount.
    if payment.terms.method == BANK and least is not None and payment.amount < least:
        problems.invalid("amount", f"Must be at least {least}, the recipient's routeMinimum")


def finish_due(world: World) -> None:
    """Finish the batches whose processing time has passed; called before each request."""
    duration = timedelta(seconds=world.switches.processing_seconds)
    now = world.now()
    for batch in list(world.processing):
        if batch.sent_at is not None and batch.sent_at + duration <= now:
            world.processing.remove(batch)
            _finish(world, batch, batch.sent_at + duration)


def _finish(world: World, batch: Batch, moment: datetime) -> None:
    """Set the final statuses; failed and returned amounts are credited again, without fees.

    Earlier interface, section 1, item 5.
    """
    for payment in batch.payments.values():
        payment.status = payment.recipient.outcome
        payment.updated_at = moment
        payment.processed_at = None if payment.status == "failed" else moment
    sent = list(batch.payments.values())
    lost = [each for each in sent if each.status != "processed"]
    balances.credit(world, batch.currency, money.total(each.terms.source for each in lost))
    # Section 6: a batch is processed if at least one of its payments succeeded.
    batch.state = "failed" if len(lost) == len(sent) else world.switches.processed_word
    batch.completed_at = batch.updated_at = moment
