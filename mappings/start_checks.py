"""Checks before a batch is started (contract, section 5, Start)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from mappings import money, outcome_rules
from mappings.batch_reads import WRONG_STATUS, build_read_lag_failure, is_recently_changed
from mappings.batch_views import SIGNED_ADDS, Batch
from mappings.effects import JSON, LoadFacts, Request, SubFlow
from mappings.failures import Invalid
from mappings.matching import Entry, Payment, extract_recipient_id
from mappings.objects import Facts
from mappings.outcome_matching import CREATION_TOLERANCE


def check_start_and_list_notices(request: Request, batch: Batch) -> SubFlow:
    """Returns notices for the operator's log. Raises Invalid if the batch cannot be started.

    Compares the payments about to be made with those requested (``verify_before_start``).
    """
    # A batch that is known to have no payments pays nothing, so it cannot be started.
    has_no_payments = batch.has_known_payments and not batch.payment_count
    if has_no_payments and batch.entries and is_recently_changed(batch, request.now):
        raise build_read_lag_failure()
    if not batch.is_editable or has_no_payments:
        raise Invalid(WRONG_STATUS)
    # The gateway does not know what was requested of a batch that was created elsewhere.
    is_made_here = batch.facts.get("createdAt") and not batch.facts.get("elsewhere")
    if not is_made_here:
        unseen_times = yield LoadFacts("may exist", ids=(batch.upstream_id,))
        require_not_created_with(unseen_times.values(), batch.service_fields.get("createdAt"))
    if request.options.verify_before_start == "off" or not is_made_here:
        return ()
    # Payments are compared by content: the service may have given them other ids.
    if (yield from has_upstream_batch_requested_payments(batch)):
        return ()
    if request.options.verify_before_start == "refuse":
        raise Invalid(WRONG_STATUS)
    return ("started a batch whose payments differ from those requested through the gateway",)


def require_not_started_elsewhere(facts: Facts) -> SubFlow:
    """Raises Invalid if a superseded batch of this one is known to be started elsewhere.

    Its payments are those of this batch before an edit, so a start would pay most of them twice.
    """
    superseded_ids = facts.get("abandoned")
    redirects = (yield LoadFacts("alias", ids=tuple(superseded_ids))) if superseded_ids else {}
    if any(redirect.get("started") for redirect in redirects.values()):
        raise Invalid(WRONG_STATUS)


def require_not_created_with(unseen_times: Iterable[str], created_at: JSON) -> None:
    """Raises Invalid for a batch that was created when a ``POST /batches`` had no response.

    If the service lists no batches, this may be the one that it created then. It is never started
    (contract, section 7), because its client may have created another.
    """
    for unseen_time in unseen_times:
        try:
            elapsed = datetime.fromisoformat(str(created_at)) - datetime.fromisoformat(unseen_time)
        # Without a date, or without a zone, nothing says that it is another one.
        except (ValueError, TypeError):
            raise Invalid(WRONG_STATUS) from None
        if abs(elapsed) < CREATION_TOLERANCE:
            raise Invalid(WRONG_STATUS)


def has_start_changed_batch_amount(amount: JSON, batch: Batch) -> bool:
    """Whether the start changed the batch's amount: the service may apply new exchange rates."""
    new, old = money.parse_amount(amount), money.parse_amount(batch.service_fields.get("amount"))
    return None not in (new, old) and new != old


def has_upstream_batch_requested_payments(batch: Batch) -> SubFlow:
    """Whether the service's batch makes the requested payments: recipient, amount and currency.

    The batch may also contain payments that clients have added by signed requests.
    """
    # Payments are counted, because a client may request equal ones, and the service may reorder
    # them.
    requested_counts = Counter(
        _build_requested_payment_key(entry, batch.facts.get("currency")) for entry in batch.entries
    )
    unrequested: list[Payment] = []
    for payment in batch.payments:
        side = payment.get("asked_side") or "source"
        amount = money.parse_amount(payment.get(f"{side}Amount"))
        recipient = (payment.get("recipient") or {}).get("id")
        actual_counts = recipient, amount, payment.get(f"{side}Currency")
        if requested_counts[actual_counts]:
            requested_counts[actual_counts] -= 1
        else:
            unrequested.append(payment)
    if requested_counts.total():
        return False
    added_bodies = list((yield LoadFacts(SIGNED_ADDS, batch.id)).values()) if unrequested else []
    for payment in unrequested:
        matches = (
            body
            for body in added_bodies
            if outcome_rules.is_payment_of_add(payment, body, batch.currency)
        )
        if (match := next(matches, None)) is None:
            return False
        # Each add explains one payment, so that a payment made twice is noticed.
        added_bodies.remove(match)
    return True


def _build_requested_payment_key(entry: Entry, currency: JSON) -> tuple[JSON, ...]:
    payee = extract_recipient_id(entry)
    if entry.get("sourceAmount"):
        return payee, money.parse_amount(entry["sourceAmount"]), currency
    return payee, money.parse_amount(entry.get("targetAmount")), entry.get("targetCurrency")
