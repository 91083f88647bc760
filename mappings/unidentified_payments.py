"""Payments that a batch had before a write, and that its summary did not identify then.

An outcome rule must take none of them for one that the write has added.
"""

from collections.abc import Iterable, Sequence
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
from mappings.matching import Entry, Payment, list_entry_ids, list_unmatched_entries
from mappings.outcome_matching import ShownPayments, is_exact_payment


def drop_hidden_payments(rows: Iterable[Payment], batch: Batch, now: datetime) -> list[Payment]:
    """Drops the payments of earlier changes, which the service did not show when a write was sent."""
    entries = _list_hidden_entries(batch, now)
    ids = {id_ for entry in entries for id_ in list_entry_ids(entry)}
    shown = ShownPayments((row for row in rows if row.get("id") not in ids), batch.currency)
    for entry in entries:
        if not list_entry_ids(entry):  # of a service that answers without ids
            shown.take(entry, is_exact_payment)
    return shown.remaining


def _list_hidden_entries(batch: Batch, now: datetime) -> Sequence[Entry]:
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
