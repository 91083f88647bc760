"""Whether a summary shows the last changes of its batch.

A service may show a change later than it confirms it. What a draft is made of must not lack a payment
that was just added, nor have one that was just removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

from mappings import money, outcome_rules
from mappings.batch_views import Batch
from mappings.dates import parse_instant_or_earliest
from mappings.effects import JSON, MAX_READ_LAG
from mappings.failures import Halted, Problem
from mappings.matching import Payment, list_entry_ids

NOT_SHOWN_YET = Problem(
    "internal_server_error",
    "The service does not show the last changes of this batch yet; nothing was done. Try again later.",
)


def has_last_changes(
    batch: Batch, signed_adds: Sequence[Mapping[str, JSON]], now: datetime
) -> bool:
    """Whether the summary shows the changes that were made so recently that it may lack them."""
    is_changed = is_recently_changed(batch, now)
    is_removed = _is_recent(batch.facts.get("removed_at"), now)
    recent_adds = [added for added in signed_adds if _is_recent(added.get("changed_at"), now)]
    if not (is_changed or is_removed or recent_adds):
        return True
    # Payments that were not requested as legacy ones.
    others = [payment for payment in batch.payments if payment["asked_side"] is None]
    if is_changed and not (
        len(batch.payments) - len(others) >= len(batch.entries)
        and all(map(_has_requested_amount, batch.payments))
    ):
        return False
    if is_removed and len(others) > len(signed_adds):
        return False
    for added in recent_adds:
        is_same = partial(
            outcome_rules.is_payment_of_add, sent=added, batch_currency=batch.currency
        )
        if (payment := next(filter(is_same, others), None)) is None:
            return False
        others.remove(payment)
    return True


def is_recently_changed(batch: Batch, now: datetime) -> bool:
    """Whether legacy requests changed the batch so recently that the summary need not show it."""
    return _is_recent(batch.facts.get("changed_at") or batch.facts.get("updatedAt"), now)


def require_payments_shown(batch: Batch, ids: Iterable[str], now: datetime) -> None:
    """Raises Halted if one of these payments, which the summary does not show, was just added."""
    if not is_recently_changed(batch, now) or not (unknown_ids := frozenset(ids)):
        return
    if any(not unknown_ids.isdisjoint(list_entry_ids(entry)) for entry in batch.entries):
        raise Halted(NOT_SHOWN_YET, retry_after=5)


def _has_requested_amount(payment: Payment) -> bool:
    side = payment["asked_side"]
    return side is None or (
        money.parse_amount(payment[f"{side}Amount"]) == money.parse_amount(payment["asked_amount"])
    )


def _is_recent(time: JSON, now: datetime) -> bool:
    """Whether a change was made so recently that the summary need not show it."""
    # There is no time if the batch was never changed through the gateway.
    return now - parse_instant_or_earliest(time) < MAX_READ_LAG
