"""The list of batches: the service's where it has one, filled in by the ledger, or else the ledger's."""

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
    """Every batch that there is, by the id that clients know, with what is known of it.

    ``listed`` is what the service's list told of it.
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
            if number > 1:  # found out elsewhere meanwhile: a part of a list is no list
                raise Unreachable("the service ended its list of batches half-way") from None
            return list(rows.values())
        for body in bodies:
            before = len(seen)
            for given in body.get("batches") or []:
                seen.add(given["id"])
                id_ = ours.get(given["id"], given["id"])
                if given["id"] not in abandoned and known.get(id_, {}).get("phase") != "deleted":
                    told = restore_original_fields(known.get(id_, {}), given)
                    listed = drop_nulls(told)
                    rows[id_] = {**rows.get(id_, {}), **listed, "id": id_, "listed": listed}
            pages = count_pages_to_read(body, number, is_new=len(seen) > before)
            number += 1
    return (yield from _without_gone(rows))


def _without_gone(rows: dict[str, dict[str, JSON]]) -> Sub:
    """Without batches that were deleted at the service, which its list then does not have.

    GET /batch/:id/summary  of each that it has by the ledger and not by its list
    """
    unlisted = [
        id_ for id_, row in rows.items() if row.get("phase") == "sent" and "listed" not in row
    ]
    for some in iterate_chunks(unlisted, SLICE):
        for id_, read in zip(some, (yield from load_batches(some)), strict=True):
            # Not for a page of something in front of the service, which has no problems to tell.
            if isinstance(read, Invalid) or (
                isinstance(read, Refused) and is_missing(read) and read.problems
            ):
                del rows[id_]
    return list(rows.values())


def _read(numbers: Sequence[int]) -> Sub:
    """Pages, side by side once it is known that there are so many."""
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
    """The rows that pass; a batch of which the list does not tell what is asked for is read.

    GET /batch/:id/summary  at most once for each batch
    GET /balance            once, where nothing else tells a batch's status
    GET /recipients/:id     with ``country``, of each recipient whose country no summary tells

    Raises what a read raises, unless the batch is gone: a list without those that cannot be read would
    be a part of it.
    """
    complete = (yield Recall("complete")) if filters.status else {}
    told = {row["id"]: _allows(filters, row, complete) for row in rows}
    passing = {row["id"]: row for row in rows if told[row["id"]] is not False}
    unread = [id_ for id_ in passing if told[id_] is None]
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
            # Nothing tells more: what is not told now is nothing.
            its = (batch.status or "", row.get("createdAt") or "", batch.currency or "")
            is_one = filters.allow_batch(*its)
            if is_one is None:
                is_one = yield from has_matching_payment(filters, batch.payments)
            if not is_one:
                del passing[id_]
            completed += record_completion(batch) if id_ not in complete else ()
        if completed:
            yield replace(completed[0], also=tuple(completed[1:]))
    return list(passing.values())


def _allows(filters: Filters, row: Row, complete: Mapping[str, Row]) -> bool | None:
    """As ``Filters.allow_batch``; what the service may tell otherwise by now is not told."""
    listed = row.get("listed", {})
    # The ledger knows that a batch was started, and not whether it is complete meanwhile.
    status = derive_batch_status(row if _tells_all(row) else listed)
    if row["id"] in complete:
        status = "complete"
    created = row.get("createdAt")
    if filters.are_dated and not listed.get("createdAt") and filters.is_close(created):
        created = None  # it may be this gateway's: the summary tells the service's
    currency = row.get("currency") or row.get("sourceCurrency")
    return filters.allow_batch(status, created, currency)


def load_batch_page(rows: Sequence[Row], known: Mapping[str, Row]) -> Sub:
    """The batches of a page; those that the list does not tell all of are read, side by side."""
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
    """A batch of the list as it was ``read``, or as the row and the ledger tell it."""
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
