"""The list of batches: the service's list completed with the stored batches, or these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappings.batch_reads import (
    SLICE,
    is_missing,
    load_balances_for_status,
    load_batches,
    resolve_statuses,
    set_status_by_balance,
)
from mappings.batch_views import (
    Batch,
    build_batch,
    build_batch_list_item,
    derive_batch_status,
    drop_nulls,
    is_draft,
    restore_original_fields,
)
from mappings.grammar import (
    JSON,
    SIDE_BY_SIDE,
    Call,
    Invalid,
    NoSuchOperation,
    Parallel,
    Recall,
    Record,
    Refused,
    Unreachable,
)
from mappings.list_filters import Filters, has_matching_payment
from mappings.newest import record_completion
from mappings.paging import count_pages_to_read
from mappings.payouts import Sub
from mappings.rows import iterate_chunks

Row = Mapping[str, JSON]


def listed(known: Mapping[str, Mapping[str, JSON]]) -> Sub:
    """Return a row for every batch, with its stored facts and the service's fields.

    ``id`` is the client's id. The row's ``listed`` are the fields from the service's list.
    """
    rows = {
        id_: {**facts, "id": id_} for id_, facts in known.items() if facts.get("phase") != "deleted"
    }
    ours = {facts.get("upstream"): id_ for id_, facts in known.items()}
    abandoned = {one for facts in known.values() for one in facts.get("abandoned", [])}
    seen = set[JSON]()
    number, pages = 1, 1
    while number <= pages:
        try:
            bodies = yield from _read(range(number, min(pages, number + SIDE_BY_SIDE - 1) + 1))
        except NoSuchOperation:
            # Another request found meanwhile that the service has no such path. The pages that
            # were read must not pass for the whole list.
            if number > 1:
                raise Unreachable("the service ended its list of batches half-way") from None
            return list(rows.values())
        for body in bodies:
            before = len(seen)
            for given in body.get("batches") or []:
                seen.add(given["id"])
                id_ = ours.get(given["id"], given["id"])
                # A superseded batch is listed as the draft, or the batch, that replaced it.
                if given["id"] not in abandoned and known.get(id_, {}).get("phase") != "deleted":
                    told = restore_original_fields(known.get(id_, {}), given)
                    listed = drop_nulls(told)
                    rows[id_] = {**rows.get(id_, {}), **listed, "id": id_, "listed": listed}
            # A service that ignores paging would return the same rows for ever.
            pages = count_pages_to_read(body, number, is_new=len(seen) > before)
            number += 1
    return (yield from _without_gone(rows))


def _without_gone(rows: dict[str, dict[str, JSON]]) -> Sub:
    """Drop stored batches that were deleted at the service.

    GET /batch/:id/summary  for each batch the service should have and does not list
    """
    unlisted = [
        id_ for id_, row in rows.items() if row.get("phase") == "sent" and "listed" not in row
    ]
    for some in iterate_chunks(unlisted, SLICE):
        for id_, read in zip(some, (yield from load_batches(some)), strict=True):
            # A 404 without problems comes from a proxy in front of the service, not from it.
            if isinstance(read, Invalid) or (
                isinstance(read, Refused) and is_missing(read) and read.problems
            ):
                del rows[id_]
    return list(rows.values())


def _read(numbers: Sequence[int]) -> Sub:
    """Fetch pages in parallel. The first page is fetched alone, since it gives their number."""
    queries = [{"page": str(number), "pageSize": "100"} for number in numbers]
    first, *others = (Call("GET", "/batches", query=query, witness=()) for query in queries)
    if not others:
        return [(yield first)]
    given = yield Parallel([first, *others])
    for one in given:
        if isinstance(one, Exception):
            raise one
    return given


def filter_batch_rows(rows: Sequence[Row], known: Mapping[str, Row], filters: Filters) -> Sub:
    """Return the rows that pass the filters, reading batches whose row does not decide it.

    GET /batch/:id/summary  at most once for each batch
    GET /balance            once, if a batch's status is missing
    GET /recipients/:id     with ``country``, for each recipient whose country no summary shows

    Raises the failure of a read, unless the batch is deleted: an incomplete list would look
    complete.
    """
    complete = (yield Recall("complete")) if filters.status else {}
    told = {row["id"]: _allows(filters, row, complete) for row in rows}
    passing = {row["id"]: row for row in rows if told[row["id"]] is not False}
    unread = [id_ for id_ in passing if told[id_] is None]
    # Empty until fetched; a list, because None says that the service refuses its balance.
    balances: list[Sequence[Row] | None] = []
    for some in iterate_chunks(unread, SLICE):
        completed: list[Record] = []
        for id_, read in zip(some, (yield from load_batches(some)), strict=True):
            if isinstance(read, Exception) and not is_missing(read):
                raise read
            batch = yield from _batch_of_row(passing[id_], known.get(id_, {}), read)
            if filters.status and batch.status is None:
                balances = balances or [(yield from load_balances_for_status())]
                batch = set_status_by_balance(batch, balances[0])
            row = passing[id_] = {**passing[id_], **drop_nulls(build_batch_list_item(batch))}
            # There is no further source: what is still unknown counts as empty.
            its = (batch.status or "", row.get("createdAt") or "", batch.currency or "")
            is_one = filters.allow_batch(*its)
            if is_one is None:
                is_one = yield from has_matching_payment(filters, batch.payments)
            if not is_one:
                del passing[id_]
            completed += record_completion(batch) if id_ not in complete else ()
        if completed:  # one commit for the chunk
            yield replace(completed[0], also=tuple(completed[1:]))
    return list(passing.values())


def _allows(filters: Filters, row: Row, complete: Mapping[str, Row]) -> bool | None:
    """Call ``Filters.allow_batch``, passing stored fields only if they cannot be out of date."""
    listed = row.get("listed", {})
    # The stored state knows of a start, but not whether the batch is complete by now.
    status = derive_batch_status(row if _tells_all(row) else listed)
    if row["id"] in complete:
        status = "complete"
    created = row.get("createdAt")
    if filters.are_dated and not listed.get("createdAt") and filters.is_close(created):
        created = None  # perhaps by the gateway's clock: the summary has the service's time
    currency = row.get("currency") or row.get("sourceCurrency")
    return filters.allow_batch(status, created, currency)


def load_batch_page(rows: Sequence[Row], known: Mapping[str, Row]) -> Sub:
    """Load the batches of a page, reading in parallel those that the list shows incompletely."""
    unread = [
        row["id"] for row in rows if not _tells_all(row) or is_draft(known.get(row["id"], {}))
    ]
    read = dict(zip(unread, (yield from load_batches(unread)), strict=True))
    batches: list[Batch] = []
    for row in rows:
        facts, its = known.get(row["id"], {}), read.get(row["id"])
        batches += [(yield from _batch_of_row(row, facts, its))]
    return [build_batch_list_item(batch) for batch in (yield from resolve_statuses(batches))]


def _batch_of_row(row: Row, facts: Row, read: Batch | Exception | None) -> Sub:
    """Build a listed batch from the result of its read, or else from its row and stored state."""
    if isinstance(read, Batch):
        batch = read
    else:
        entries = [] if _tells_all(row) else (yield from _entries(row["id"]))
        batch = build_batch(row["id"], facts, entries, {}, None)
    if batch.is_draft:
        return batch
    return replace(batch, given={**row, **drop_nulls(batch.given)})


def _entries(batch_id: str) -> Sub:
    return (yield Recall("payments", batch_id)).get("entries", [])


def _tells_all(row: Mapping[str, JSON]) -> bool:
    return None not in (derive_batch_status(row), row.get("amount"), row.get("totalPayments"))
