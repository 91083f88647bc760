"""Payments that a batch had before a write, and that its summary did not identify then.

An outcome rule must take none of them for one that the write has added.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mappings.batch_reads import (
    build_payment_entry,
    is_recent,
    is_recently_changed,
    list_unrequested_payments,
)
from mappings.batch_views import SIGNED_ADDS, Batch
from mappings.effects import LoadFacts, SubFlow
from mappings.lazy_sequences import map_rows
from mappings.matching import Entry, list_unmatched_entries
from mappings.outcome_matching import ShownPayments


def list_hidden_entries(batch: Batch, now: datetime) -> Sequence[Entry]:
    """Lists the payments that the summary does not show, or shows without their ids.

    Those that were added so recently, and all of them if it has no list of payments.
    """
    unidentified = [
        build_payment_entry({**payment, "id": None})
        for payment in batch.payments
        if not payment["upstream"]
    ]
    if not is_recently_changed(batch, now):
        return unidentified
    entries = batch.entries
    if batch.facts.get("is_new"):  # the ids are those of the draft
        entries = map_rows(lambda entry: {**entry, "id": None, "upstream": None}, entries)
    return [*unidentified, *list_unmatched_entries(batch.payments, entries, batch.currency)]


def load_unidentified_signed_adds(batch: Batch, now: datetime) -> SubFlow:
    """Loads the recent signed adds without a known id whose payments the batch did not show."""
    signed_adds = (yield LoadFacts(SIGNED_ADDS, batch.id)).values()
    executed = [added for added in signed_adds if added.get("changed_at")]
    executed.sort(key=lambda added: str(added["changed_at"]))
    shown_payments = ShownPayments(list_unrequested_payments(batch), batch.currency)
    return [
        added
        for added in executed  # the earlier ones first, as each explains one payment
        if not shown_payments.take_added(added)
        and not added.get("id")
        and is_recent(added["changed_at"], now)
    ]
