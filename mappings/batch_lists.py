"""Lists over all batches: the batches themselves, and the newest payments in them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import nlargest
from itertools import chain
from typing import Any

from msgspec import structs

from mappings.batch_reads import (
    SUMMARIES_PER_CHUNK,
    add_missing_statuses,
    fetch_balances_or_none,
    fill_service_fields,
    is_missing_batch_failure,
    load_batches,
    set_missing_status_by_balance,
    show_recent_start,
)
from mappings.batch_views import Batch, build_batch, build_batch_list_item, derive_batch_status
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
from mappings.effects import JSON, MAX_PARALLEL_CALLS, CompareAndSet, LoadFacts, SubFlow
from mappings.failures import NoSuchOperation, Refused, Unreachable
from mappings.lazy_sequences import iterate_chunks
from mappings.list_filters import (
    LATEST_INSTANT,
    Filters,
    filter_payments,
    has_matching_payment,
)
from mappings.matching import Payment
from mappings.objects import drop_nulls
from mappings.paging import load_all_rows, parse_count_or_default


def _load_batches_in_chunks(
    batch_ids: Iterable[str],
    process: Callable[[str, Batch | Exception], SubFlow],
    completions: Mapping[str, Any] | None = None,
) -> SubFlow:
    """Loads batches and processes each, or its failure, before more are loaded.

    With ``completions``, those that turn out to be complete, and are not among them, are recorded:
    a complete batch never changes again.
    """
    for chunk in iterate_chunks(batch_ids, SUMMARIES_PER_CHUNK):
        records: list[CompareAndSet] = []
        for id_, result in zip(chunk, (yield from load_batches(chunk)), strict=True):
            yield from process(id_, result)
            is_recorded = completions is None or id_ in completions
            if isinstance(result, Batch) and not is_recorded:
                records += _build_completion_records(result)
        if records:  # one commit for the chunk
            yield structs.replace(records[0], linked=tuple(records[1:]))


def _build_completion_records(batch: Batch) -> Iterator[CompareAndSet]:
    """Builds the record of a batch that is complete; none for any other."""
    # Without its payments, the record would say that it has none.
    if batch.status == "complete" and batch.has_known_payments:
        times = (_find_payment_time(payment, batch) for payment in batch.payments)
        newest = max(times, key=parse_instant_or_earliest, default="")
        yield CompareAndSet(
            "complete", batch.id, {"payments": len(batch.payments), "newest": newest}
        )


# The newest payments


_DatedPayment = tuple[datetime, datetime, str, int, Payment]
"""A payment after the keys that sort it, of which the largest are of the newest: its time, that of
its batch, the id of the batch, and its position there."""


def load_newest_payments(limit: int, filters: Filters) -> SubFlow:
    """Reads each batch that may have one of the ``limit`` newest payments.

    GET /batches            as for a list of batches
    GET /batch/:id/summary  for each of these batches

    Returns these payments, the newest first, and the number of all payments. With a filter, every
    batch is read, except for complete ones without a payment created after ``filters.since``.
    """
    batches, recorded = (yield from load_listed_batches()), (yield LoadFacts("complete"))
    completions = {**dict(_iterate_listed_completions(batches)), **recorded}
    created_at_by_id = {each.id: parse_instant_or_earliest(each.created_at) for each in batches}
    complete_ids = [id_ for id_ in created_at_by_id if id_ in completions]
    if filters:
        for id_ in complete_ids:
            if EARLIEST_INSTANT < _parse_newest_time(completions[id_]) < filters.since:
                del created_at_by_id[id_]
        complete_ids = []
    # Complete batches are read last and only as needed; the others may have new payments.
    complete_ids.sort(key=lambda id_: _parse_newest_time(completions[id_]), reverse=True)
    unread_ids = created_at_by_id.keys() - complete_ids
    other_ids = sorted(unread_ids, key=lambda id_: (created_at_by_id[id_], id_), reverse=True)
    newest, records = list[_DatedPayment](), 0

    def add_payments(_batch_id: str, batch: Batch | Exception) -> SubFlow:
        nonlocal newest, records
        if isinstance(batch, Exception):
            # A deleted batch has no payments. Any other failure would leave a gap in the list.
            if not is_missing_batch_failure(batch):
                raise batch
            return
        payments = batch.payments
        if filters:
            payments = yield from filter_payments(filters, payments)
        records += len(payments)
        candidates = chain(newest, _iterate_dated_payments(batch, payments))
        # At most ``limit`` payments are in memory, however many a batch has.
        newest = nlargest(limit, candidates, key=lambda candidate: candidate[:4])

    yield from _load_batches_in_chunks(other_ids, add_payments, recorded)
    remaining_ids = deque(complete_ids)
    while batch_ids := _take_next_batch_ids(remaining_ids, completions, newest, limit):
        yield from _load_batches_in_chunks(batch_ids, add_payments, recorded)
    # Counted without a read, because ``meta`` has the total over all batches.
    unread_count = sum(completions[id_]["payments"] for id_ in remaining_ids)
    return [payment for *_, payment in newest], records + unread_count


def _take_next_batch_ids(
    remaining_ids: deque[str],
    completions: Mapping[str, Mapping[str, JSON]],
    newest: Sequence[_DatedPayment],
    limit: int,
) -> Sequence[str]:
    """Takes the next batches to read from ``remaining_ids``, which has the newest first."""
    # Batches are added until those taken have enough payments, or until the next one has only
    # payments older than all those that are held.
    missing_count, batch_ids = limit - len(newest), list[str]()
    oldest_created_at = LATEST_INSTANT if missing_count > 0 else newest[-1][0]
    while remaining_ids and len(batch_ids) < MAX_PARALLEL_CALLS:
        completion = completions[remaining_ids[0]]
        if missing_count <= 0 and _parse_newest_time(completion) < oldest_created_at:
            break
        batch_ids.append(remaining_ids.popleft())
        missing_count -= completion["payments"]
    return batch_ids


def _iterate_listed_completions(batches: Iterable[Batch]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterates over complete batches of which the list shows what their completion would record.

    It shows when they were changed last: no payment of theirs is newer.
    """
    for batch in batches:
        shown = batch.service_fields
        completion = {
            "payments": parse_count_or_default(shown.get("totalPayments"), None),
            "newest": shown.get("updatedAt"),
        }
        is_dated = _parse_newest_time(completion) > EARLIEST_INSTANT
        if batch.status == "complete" and is_dated and completion["payments"] is not None:
            yield batch.id, completion


def _iterate_dated_payments(batch: Batch, payments: Sequence[Payment]) -> Iterator[_DatedPayment]:
    # Instants, because services write fractions and offsets in several ways.
    batch_created_at = parse_instant_or_earliest(batch.facts.get("createdAt") or batch.created_at)
    for position, payment in enumerate(payments):
        created_at = parse_instant_or_earliest(_find_payment_time(payment, batch))
        yield created_at, batch_created_at, batch.id, position, payment


def _find_payment_time(payment: Payment, batch: Batch) -> str:
    """Returns the creation time as the service wrote it, else that of the batch; may be empty."""
    created_at = payment.get("createdAt") or (payment.get("batch") or {}).get("createdAt")
    return str(created_at or batch.facts.get("createdAt") or batch.created_at or "")


def _parse_newest_time(completion: Mapping[str, JSON]) -> datetime:
    return parse_instant_or_earliest(completion["newest"])


# The batches


def load_listed_batches() -> SubFlow:
    """Returns every batch with what the service's list shows of it; payments are not read."""
    facts_by_id = yield LoadFacts("batch")
    batches = {
        id_: build_batch(id_, facts, [], {}, None)
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
        return list(batches.values())
    except Refused as refusal:
        # A list itself is never not found (contract, section 5), also if the path is to be used.
        if refusal.status != 404:
            raise
        raise Unreachable("the service has no list of batches") from None
    for item in items.values():
        id_ = str(ids_by_upstream.get(item["id"], item["id"]))
        # A superseded batch is listed as the draft, or the batch, that replaced it.
        facts = facts_by_id.get(id_, {})
        if item["id"] not in superseded_ids and facts.get("phase") != "deleted":
            batches[id_] = build_batch(id_, facts, [], item, None)
    return (yield from _drop_missing_batches(batches))


def _drop_missing_batches(batches: dict[str, Batch]) -> SubFlow:
    """Drops stored batches that were deleted at the service.

    GET /batch/:id/summary  for each batch that the service should have and does not list
    """

    def drop_if_missing(id_: str, result: Batch | Exception) -> SubFlow:
        yield from ()
        if isinstance(result, Exception) and is_missing_batch_failure(result):
            del batches[id_]

    unlisted_ids = [
        id_
        for id_, batch in batches.items()
        if batch.facts.get("phase") == "sent" and not batch.service_fields
    ]
    yield from _load_batches_in_chunks(unlisted_ids, drop_if_missing)
    return list(batches.values())


def filter_batches(batches: Sequence[Batch], query: Mapping[str, str]) -> SubFlow:
    """Returns the listed batches that pass the filters of a query, newest first, ties by id."""
    filters = Filters.from_query(query)
    if search := filters.search:
        # Clients search for the ids they know, which may not be the service's.
        names = yield LoadFacts("legacy id", ids=tuple(batch.id for batch in batches))
        batches = [each for each in batches if search in names.get(each.id, each.id).casefold()]
    if replace(filters, search=""):
        batches = yield from _filter_by_content(batches, filters)
    # The second sort is stable.
    batches = sorted(batches, key=lambda batch: batch.id)
    return sorted(
        batches, key=lambda batch: parse_instant_or_earliest(batch.created_at), reverse=True
    )


def _filter_by_content(batches: Sequence[Batch], filters: Filters) -> SubFlow:
    """Returns the batches that pass the filters, reading those that the list does not decide.

    GET /batch/:id/summary  at most once for each batch
    GET /balance            once, if a batch's status is missing
    GET /recipients/:id     with country, for each recipient whose country no summary shows

    Raises the failure of a read, unless the batch is deleted: an incomplete list would look
    complete.
    """
    completions = (yield LoadFacts("complete")) if filters.status else {}
    decisions = {each.id: _evaluate_filters_on_list(filters, each, completions) for each in batches}
    passing_batches = {each.id: each for each in batches if decisions[each.id] is not False}
    # Empty until fetched; a list, because None says that the service refuses its balance.
    balances: list[Sequence[Mapping[str, JSON]] | None] = []

    def filter_batch(id_: str, result: Batch | Exception) -> SubFlow:
        if isinstance(result, Exception) and not is_missing_batch_failure(result):
            raise result
        batch = yield from _complete_listed_batch(passing_batches[id_], result)
        if filters.status and batch.status is None:
            if not balances:
                balances.append((yield from fetch_balances_or_none(is_required=True)))
            set_missing_status_by_balance(batch, balances[0])
        # There is no further source: a value that is still unknown counts as empty.
        criteria = (batch.status or "", batch.created_at or "", batch.currency or "")
        is_match = filters.evaluate_batch_filters(*criteria)
        if is_match is None:
            is_match = yield from has_matching_payment(filters, batch.payments)
        listed = passing_batches.pop(id_)
        if is_match:
            # As if the service had listed all of it: payments of many batches need much memory.
            fields = {**listed.service_fields, **drop_nulls(build_batch_list_item(batch))}
            passing_batches[id_] = build_batch(id_, batch.facts, [], fields, None)

    unread_ids = [id_ for id_ in passing_batches if decisions[id_] is None]
    yield from _load_batches_in_chunks(unread_ids, filter_batch, completions)
    return list(passing_batches.values())


def _evaluate_filters_on_list(
    filters: Filters, batch: Batch, completions: Mapping[str, Mapping[str, JSON]]
) -> bool | None:
    """Calls ``Filters.evaluate_batch_filters``, passing stored fields only if they cannot be out of date."""
    # The stored state knows of a start, but not whether the batch is complete by now.
    is_listed = _has_all_listed_fields(batch)
    status = batch.status if is_listed else derive_batch_status(batch.service_fields.get)
    if batch.id in completions:
        status = "complete"
    created, is_dated = batch.created_at, batch.service_fields.get("createdAt")
    if filters.has_dates and not is_dated and filters.is_near_date_bound(created):
        created = None  # this may be the gateway's clock: the summary has the service's time
    return filters.evaluate_batch_filters(status, created, batch.currency)


def load_batch_page(listed_batches: Sequence[Batch], now: datetime) -> SubFlow:
    """Loads the batches of a page, reading in parallel those that the list shows incompletely."""
    unread_ids = [batch.id for batch in listed_batches if not _has_all_listed_fields(batch)]
    results = dict(zip(unread_ids, (yield from load_batches(unread_ids)), strict=True))
    batches: list[Batch] = []
    for batch in listed_batches:
        batches += [(yield from _complete_listed_batch(batch, results.get(batch.id)))]
        show_recent_start(batches[-1], now)
    yield from add_missing_statuses(batches)
    return [build_batch_list_item(batch) for batch in batches]


def _complete_listed_batch(listed: Batch, result: Batch | Exception | None) -> SubFlow:
    """Completes a listed batch from the result of its read, or else from its stored payments."""
    if isinstance(result, Batch):
        return result if result.is_draft else fill_service_fields(result, listed.service_fields)
    if not _has_all_listed_fields(listed):
        listed.entries = (yield LoadFacts("payments", listed.id)).get("entries", [])
    return listed


def _has_all_listed_fields(batch: Batch) -> bool:
    shown = batch.service_fields
    return None not in (batch.status, shown.get("amount"), shown.get("totalPayments"))
