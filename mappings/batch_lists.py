"""Lists over all batches: the batches themselves, and the newest payments in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from msgspec import structs

from mappings.batch_answers import build_batch_list_item
from mappings.batch_reads import (
    SUMMARIES_PER_CHUNK,
    add_missing_statuses,
    fetch_balances_for_status_filter,
    is_missing_batch_failure,
    load_batches,
    set_missing_status_by_balance,
)
from mappings.batch_views import (
    Batch,
    build_batch,
    derive_batch_status,
    drop_nulls,
    is_draft,
    restore_original_batch_fields,
)
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
from mappings.effects import JSON, MAX_PARALLEL_CALLS, CompareAndSet, LoadFacts, SubFlow
from mappings.failures import Invalid, NoSuchOperation, Refused
from mappings.lazy_sequences import iterate_chunks
from mappings.list_filters import Filters, has_matching_payment
from mappings.matching import Payment
from mappings.paging import load_all_rows


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
    reader = _NewestPaymentsReader(limit, select_wanted, completions)
    remaining_ids = deque(complete_ids)
    yield from reader.read_batches(other_ids)
    while batch_ids := reader.take_next_batch_ids(remaining_ids):
        yield from reader.read_batches(batch_ids)
    # Counted without a read, because ``meta`` has the total over all batches.
    unread_count = sum(completions[id_]["payments"] for id_ in remaining_ids)
    return NewestPayments([each.payment for each in reader.newest], reader.records + unread_count)


def _has_no_payment_since(completion: Mapping[str, JSON] | None, since: datetime) -> bool:
    """Whether a batch is known to be complete and to have no payment created since then."""
    if completion is None:
        return False
    return EARLIEST_INSTANT < parse_instant_or_earliest(completion["newest"]) < since


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
                    if batch.id not in self.completions:
                        completion_records += build_completion_records(batch)
                # A deleted batch has no payments. Any other failure would leave a gap in the list.
                elif not is_missing_batch_failure(batch):
                    raise batch
            if completion_records:
                yield structs.replace(completion_records[0], linked=tuple(completion_records[1:]))

    def _add_payments(self, batch: Batch) -> SubFlow:
        payments = batch.payments
        if self.select_wanted:
            payments = yield from self.select_wanted(payments)
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
            is_older = oldest_created_at is None or completion["newest"] < oldest_created_at
            if missing_count <= 0 and is_older:
                break
            batch_ids.append(remaining_ids.popleft())
            missing_count -= completion["payments"]
        return batch_ids


def build_completion_records(batch: Batch) -> Iterator[CompareAndSet]:
    """Builds the record of a batch that is complete; none for any other."""
    # Without its payments, the record would say that it has none.
    if batch.status == "complete" and batch.has_known_payments:
        dated_payments = _build_dated_payments(batch, batch.payments)
        newest = max((each.created_at for each in dated_payments), default="")
        facts = {"payments": len(batch.payments), "newest": newest}
        yield CompareAndSet("complete", batch.id, facts)


Row = Mapping[str, JSON]


def load_batch_rows(facts_by_id: Mapping[str, Mapping[str, JSON]]) -> SubFlow:
    """Returns a row for every batch, with its stored facts and the service's fields.

    ``id`` is the client's id. The row's ``listed`` are the fields from the service's list.
    """
    rows = {
        id_: {**facts, "id": id_}
        for id_, facts in facts_by_id.items()
        if facts.get("phase") != "deleted"
    }
    # An edited batch has another id at the service than clients know.
    ids_by_upstream = {facts.get("upstream"): id_ for id_, facts in facts_by_id.items()}
    all_facts = facts_by_id.values()
    superseded_ids = {id_ for facts in all_facts for id_ in facts.get("abandoned", [])}
    try:
        items = yield from load_all_rows("/batches", "batches", probe_ids=())
    except NoSuchOperation:
        return list(rows.values())
    for item in items.values():
        id_ = str(ids_by_upstream.get(item["id"], item["id"]))
        # A superseded batch is listed as the draft, or the batch, that replaced it.
        facts = facts_by_id.get(id_, {})
        if item["id"] not in superseded_ids and facts.get("phase") != "deleted":
            listed_fields = drop_nulls(restore_original_batch_fields(facts, item))
            rows[id_] = {**rows.get(id_, {}), **listed_fields, "id": id_, "listed": listed_fields}
    return (yield from _drop_missing_batches(rows))


def _drop_missing_batches(rows: dict[str, dict[str, JSON]]) -> SubFlow:
    """Drops stored batches that were deleted at the service.

    GET /batch/:id/summary  for each batch that the service should have and does not list
    """
    unlisted_ids = [
        id_ for id_, row in rows.items() if row.get("phase") == "sent" and "listed" not in row
    ]
    for chunk in iterate_chunks(unlisted_ids, SUMMARIES_PER_CHUNK):
        for id_, result in zip(chunk, (yield from load_batches(chunk)), strict=True):
            # A 404 without problems comes from a proxy in front of the service, not from it.
            if isinstance(result, Invalid) or (
                isinstance(result, Refused) and is_missing_batch_failure(result) and result.problems
            ):
                del rows[id_]
    return list(rows.values())


def filter_batch_rows(
    rows: Sequence[Row], facts_by_id: Mapping[str, Row], filters: Filters
) -> SubFlow:
    """Returns the rows that pass the filters, reading batches whose row does not decide it.

    GET /batch/:id/summary  at most once for each batch
    GET /balance            once, if a batch's status is missing
    GET /recipients/:id     with ``country``, for each recipient whose country no summary shows

    Raises the failure of a read, unless the batch is deleted: an incomplete list would look
    complete.
    """
    # A complete batch never changes again, so it is read only once.
    completions = (yield LoadFacts("complete")) if filters.status else {}
    decisions = {row["id"]: _evaluate_filters_on_row(filters, row, completions) for row in rows}
    passing_rows = {row["id"]: row for row in rows if decisions[row["id"]] is not False}
    unread_ids = [id_ for id_ in passing_rows if decisions[id_] is None]
    # Empty until fetched; a list, because None says that the service refuses its balance.
    balances: list[Sequence[Row] | None] = []
    for chunk in iterate_chunks(unread_ids, SUMMARIES_PER_CHUNK):
        completion_records: list[CompareAndSet] = []
        for id_, result in zip(chunk, (yield from load_batches(chunk)), strict=True):
            if isinstance(result, Exception) and not is_missing_batch_failure(result):
                raise result
            facts = facts_by_id.get(id_, {})
            batch = yield from _build_listed_batch(passing_rows[id_], facts, result)
            if filters.status and batch.status is None:
                balances = balances or [(yield from fetch_balances_for_status_filter())]
                batch = set_missing_status_by_balance(batch, balances[0])
            row = {**passing_rows[id_], **drop_nulls(build_batch_list_item(batch))}
            passing_rows[id_] = row
            # There is no further source: a value that is still unknown counts as empty.
            criteria = (batch.status or "", row.get("createdAt") or "", batch.currency or "")
            is_match = filters.evaluate_batch_filters(*criteria)
            if is_match is None:
                is_match = yield from has_matching_payment(filters, batch.payments)
            if not is_match:
                del passing_rows[id_]
            completion_records += build_completion_records(batch) if id_ not in completions else ()
        if completion_records:  # one commit for the chunk
            yield structs.replace(completion_records[0], linked=tuple(completion_records[1:]))
    return list(passing_rows.values())


def _evaluate_filters_on_row(
    filters: Filters, row: Row, completions: Mapping[str, Row]
) -> bool | None:
    """Calls ``Filters.evaluate_batch_filters``, passing stored fields only if they cannot be out of date."""
    listed_fields = row.get("listed", {})
    # The stored state knows of a start, but not whether the batch is complete by now.
    fields = row if _has_all_listed_fields(row) else listed_fields
    status = derive_batch_status(fields.get)
    if row["id"] in completions:
        status = "complete"
    created, is_listed = row.get("createdAt"), listed_fields.get("createdAt")
    if filters.has_dates and not is_listed and filters.is_near_date_bound(created):
        created = None  # this may be the gateway's clock: the summary has the service's time
    currency = row.get("currency") or row.get("sourceCurrency")
    return filters.evaluate_batch_filters(status, created, currency)


def load_batch_page(rows: Sequence[Row], facts_by_id: Mapping[str, Row]) -> SubFlow:
    """Loads the batches of a page, reading in parallel those that the list shows incompletely."""
    unread_ids = [
        row["id"]
        for row in rows
        if not _has_all_listed_fields(row) or is_draft(facts_by_id.get(row["id"], {}))
    ]
    results = dict(zip(unread_ids, (yield from load_batches(unread_ids)), strict=True))
    batches: list[Batch] = []
    for row in rows:
        facts, result = facts_by_id.get(row["id"], {}), results.get(row["id"])
        batches += [(yield from _build_listed_batch(row, facts, result))]
    return [build_batch_list_item(batch) for batch in (yield from add_missing_statuses(batches))]


def _build_listed_batch(row: Row, facts: Row, result: Batch | Exception | None) -> SubFlow:
    """Builds a listed batch from the result of its read, or else from its row and stored state."""
    if isinstance(result, Batch):
        batch = result
    else:
        entries = []
        if not _has_all_listed_fields(row):
            entries = (yield LoadFacts("payments", row["id"])).get("entries", [])
        batch = build_batch(row["id"], facts, entries, {}, None)
    if batch.is_draft:
        return batch
    return structs.replace(batch, service_fields={**row, **drop_nulls(batch.service_fields)})


def _has_all_listed_fields(row: Mapping[str, JSON]) -> bool:
    return None not in (derive_batch_status(row.get), row.get("amount"), row.get("totalPayments"))
