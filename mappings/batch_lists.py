"""The list of batches: the service's list completed with the stored batches, or these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from mappings.effects import JSON, MAX_PARALLEL_CALLS, Call, CompareAndSet, LoadFacts, Parallel
from mappings.failures import Invalid, NoSuchOperation, Refused, Unreachable
from mappings.lazy_sequences import iterate_chunks
from mappings.list_filters import Filters, has_matching_payment
from mappings.newest_payments import build_completion_records
from mappings.paging import compute_last_page_to_read
from mappings.payouts import SubFlow

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
    superseded_ids = {
        superseded_id
        for facts in facts_by_id.values()
        for superseded_id in facts.get("abandoned", [])
    }
    seen_ids = set[JSON]()
    number, pages = 1, 1
    while number <= pages:
        try:
            bodies = yield from _fetch_batch_pages(
                range(number, min(pages, number + MAX_PARALLEL_CALLS - 1) + 1)
            )
        except NoSuchOperation:
            # Another request has just found that the service lacks this path. The pages read so far
            # must not count as the whole list.
            if number > 1:
                raise Unreachable("the service ended its list of batches half-way") from None
            return list(rows.values())
        for body in bodies:
            count_before = len(seen_ids)
            for item in body.get("batches") or []:
                seen_ids.add(item["id"])
                id_ = ids_by_upstream.get(item["id"], item["id"])
                # A superseded batch is listed as the draft, or the batch, that replaced it.
                if (
                    item["id"] not in superseded_ids
                    and facts_by_id.get(id_, {}).get("phase") != "deleted"
                ):
                    fields = restore_original_batch_fields(facts_by_id.get(id_, {}), item)
                    listed_fields = drop_nulls(fields)
                    rows[id_] = {
                        **rows.get(id_, {}),
                        **listed_fields,
                        "id": id_,
                        "listed": listed_fields,
                    }
            # A service that ignores paging would return the same rows forever.
            pages = compute_last_page_to_read(body, number, is_new=len(seen_ids) > count_before)
            number += 1
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


def _fetch_batch_pages(numbers: Sequence[int]) -> SubFlow:
    """Fetches pages in parallel. The first page is fetched alone, since it gives their number."""
    queries = [{"page": str(number), "pageSize": "100"} for number in numbers]
    first_call, *further_calls = (
        Call("GET", "/batches", query=query, probe_ids=()) for query in queries
    )
    if not further_calls:
        return [(yield first_call)]
    answers = yield Parallel([first_call, *further_calls])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


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
            batch = yield from _build_listed_batch(
                passing_rows[id_], facts_by_id.get(id_, {}), result
            )
            if filters.status and batch.status is None:
                balances = balances or [(yield from fetch_balances_for_status_filter())]
                batch = set_missing_status_by_balance(batch, balances[0])
            row = passing_rows[id_] = {
                **passing_rows[id_],
                **drop_nulls(build_batch_list_item(batch)),
            }
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
    status = derive_batch_status(row if _has_all_listed_fields(row) else listed_fields)
    if row["id"] in completions:
        status = "complete"
    created = row.get("createdAt")
    if (
        filters.has_dates
        and not listed_fields.get("createdAt")
        and filters.is_near_date_bound(created)
    ):
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
        entries = (
            []
            if _has_all_listed_fields(row)
            else (yield LoadFacts("payments", row["id"])).get("entries", [])
        )
        batch = build_batch(row["id"], facts, entries, {}, None)
    if batch.is_draft:
        return batch
    return replace(batch, service_fields={**row, **drop_nulls(batch.service_fields)})


def _has_all_listed_fields(row: Mapping[str, JSON]) -> bool:
    return None not in (derive_batch_status(row), row.get("amount"), row.get("totalPayments"))
