"""The newest payments of a merchant over all batches, for which the service has no list.

A complete batch does not change any more. The gateway stores how many payments it has and when the
newest of them was created (kind ``complete``), and reads its summary only if it may have some of
the requested payments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from msgspec import structs

from mappings.batch_reads import SUMMARIES_PER_CHUNK, is_missing_batch_failure, load_batches
from mappings.batch_views import Batch
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
from mappings.effects import JSON, MAX_PARALLEL_CALLS, CompareAndSet, LoadFacts
from mappings.matching import Payment
from mappings.payouts import SubFlow


class NewestPayments(NamedTuple):
    payments: Sequence[Payment]
    records: int
    """Total number of payments."""


def load_newest_payments(
    limit: int,
    select_wanted: Callable[[Sequence[Payment]], SubFlow] | None = None,
    since: datetime = EARLIEST_INSTANT,
) -> SubFlow:
    """Reads each batch that may have one of the ``limit`` newest payments (GET /batch/:id/summary).

    Returns these payments, the newest first. With a filter, ``select_wanted``, every batch is read,
    except for complete ones without a payment created after ``since``.
    """
    facts_by_id, completions = (yield LoadFacts("batch")), (yield LoadFacts("complete"))
    created_at_by_id = {
        id_: str(facts.get("createdAt") or "")
        for id_, facts in facts_by_id.items()
        if facts.get("phase") != "deleted"
    }
    complete_ids = [] if select_wanted else [id_ for id_ in created_at_by_id if id_ in completions]
    # Complete batches are read last and only as needed; the others may have new payments.
    complete_ids.sort(key=lambda id_: str(completions[id_]["newest"]), reverse=True)
    older_ids = {
        id_
        for id_ in created_at_by_id
        if select_wanted and _has_no_payment_since(completions.get(id_), since)
    }
    unread_ids = created_at_by_id.keys() - complete_ids - older_ids
    other_ids = sorted(unread_ids, key=lambda id_: (created_at_by_id[id_], id_), reverse=True)
    reader, remaining_ids = (
        _NewestPaymentsReader(limit, select_wanted, completions),
        deque(complete_ids),
    )
    yield from reader.read_batches(other_ids)
    while batch_ids := reader.take_next_batch_ids(remaining_ids):
        yield from reader.read_batches(batch_ids)
    # Counted without a read, because ``meta`` has the total over all batches.
    unread_count = sum(completions[id_]["payments"] for id_ in remaining_ids)
    return NewestPayments(
        [dated_payment.payment for dated_payment in reader.newest], reader.records + unread_count
    )


def _has_no_payment_since(completion: Mapping[str, JSON] | None, since: datetime) -> bool:
    """Whether a batch is known to be complete and to have no payment created since then."""
    return (
        completion is not None
        and EARLIEST_INSTANT < parse_instant_or_earliest(completion["newest"]) < since
    )


class _DatedPayment(NamedTuple):
    """A payment with its sort key, newest last.

    For payments with the same time, the one in the newer batch is newer, then the later one in the
    batch.
    """

    created_at: str
    batch_created_at: str
    batch_id: str
    position: int
    payment: Payment


def _build_dated_payments(batch: Batch, payments: Sequence[Payment]) -> Iterator[_DatedPayment]:
    batch_created_at = str(batch.facts.get("createdAt") or "")
    for position, payment in enumerate(payments):
        created_at = payment.get("createdAt") or (payment.get("batch") or {}).get("createdAt")
        yield _DatedPayment(
            str(created_at or batch_created_at), batch_created_at, batch.id, position, payment
        )


@dataclass(slots=True)
class _NewestPaymentsReader:
    """Reads batches and holds at most the ``limit`` newest of their payments."""

    limit: int
    select_wanted: Callable[[Sequence[Payment]], SubFlow] | None
    completions: Mapping[str, Mapping[str, JSON]]
    newest: list[_DatedPayment] = field(default_factory=list)
    records: int = 0

    def read_batches(self, batch_ids: Sequence[str]) -> SubFlow:
        for start in range(0, len(batch_ids), SUMMARIES_PER_CHUNK):
            completion_records: list[CompareAndSet] = []
            for batch in (yield from load_batches(batch_ids[start : start + SUMMARIES_PER_CHUNK])):
                if isinstance(batch, Batch):
                    yield from self._add_payments(batch)
                    completion_records += (
                        build_completion_records(batch) if batch.id not in self.completions else ()
                    )
                # A deleted batch has no payments. Any other failure would leave a gap in the list.
                elif not is_missing_batch_failure(batch):
                    raise batch
            if completion_records:
                yield structs.replace(completion_records[0], linked=tuple(completion_records[1:]))

    def _add_payments(self, batch: Batch) -> SubFlow:
        payments = (
            (yield from self.select_wanted(batch.payments))
            if self.select_wanted
            else batch.payments
        )
        self.records += len(payments)
        candidates = chain(self.newest, _build_dated_payments(batch, payments))
        # At most ``limit`` payments are in memory, however many a batch has.
        self.newest = nlargest(self.limit, candidates, key=lambda candidate: candidate[:4])

    def take_next_batch_ids(self, remaining_ids: deque[str]) -> Sequence[str]:
        """Takes the next batches to read from ``remaining_ids``, which has the newest first."""
        # Batches are added until those taken have enough payments, or until the next one has only
        # payments older than all those that are held.
        missing_count, batch_ids = self.limit - len(self.newest), list[str]()
        oldest_created_at = None if missing_count > 0 else self.newest[-1].created_at
        while remaining_ids and len(batch_ids) < MAX_PARALLEL_CALLS:
            completion = self.completions[remaining_ids[0]]
            if missing_count <= 0 and (
                oldest_created_at is None or completion["newest"] < oldest_created_at
            ):
                break
            batch_ids.append(remaining_ids.popleft())
            missing_count -= completion["payments"]
        return batch_ids


def build_completion_records(batch: Batch) -> Iterator[CompareAndSet]:
    """Builds the record of a batch that is complete; none for any other."""
    # Without its payments, the record would say that it has none.
    if batch.status == "complete" and batch.has_known_payments:
        newest_created_at = max(
            (
                dated_payment.created_at
                for dated_payment in _build_dated_payments(batch, batch.payments)
            ),
            default="",
        )
        yield CompareAndSet(
            "complete", batch.id, {"payments": len(batch.payments), "newest": newest_created_at}
        )
