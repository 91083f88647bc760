"""The list of batches: the service's where it has one, filled in by the ledger, or else the ledger's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappings.batch_reads import loaded_together, with_statuses
from mappings.batch_views import (
    Batch,
    as_first_made,
    batch_of,
    is_draft,
    listed_batch,
    present,
    told_status,
)
from mappings.grammar import (
    JSON,
    SIDE_BY_SIDE,
    Call,
    NoSuchOperation,
    Recall,
    Together,
    Unreachable,
)
from mappings.paging import pages_to_read
from mappings.payouts import Sub


def listed(known: Mapping[str, Mapping[str, JSON]]) -> Sub:
    """Every batch that there is, by the id that clients know, with what is known of it."""
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
                    told = as_first_made(known.get(id_, {}), given)
                    rows[id_] = {**rows.get(id_, {}), **told, "id": id_}
            pages = pages_to_read(body, number, is_new=len(seen) > before)
            number += 1
    return list(rows.values())


def _read(numbers: Sequence[int]) -> Sub:
    """Pages, side by side once it is known that there are so many."""
    queries = [{"page": str(number), "pageSize": "100"} for number in numbers]
    first, *others = (Call("GET", "/batches", query=query, witness=()) for query in queries)
    if not others:
        return [(yield first)]
    given = yield Together([first, *others])
    for one in given:
        if isinstance(one, Exception):
            raise one
    return given


def rows_of(rows: Sequence[Mapping[str, JSON]], known: Mapping[str, Mapping[str, JSON]]) -> Sub:
    """The batches of a page; those that the list does not tell all of are read, side by side."""
    unread = [
        row["id"] for row in rows if not _tells_all(row) or is_draft(known.get(row["id"], {}))
    ]
    read = dict(zip(unread, (yield from loaded_together(unread)), strict=True))
    batches: list[Batch] = []
    for row in rows:
        facts, batch = known.get(row["id"], {}), read.get(row["id"])
        if not isinstance(batch, Batch):
            entries = [] if _tells_all(row) else (yield from _entries(row["id"]))
            batch = batch_of(row["id"], facts, entries, {}, None)
        if not batch.is_draft:
            batch = replace(batch, given={**row, **present(batch.given)})
        batches.append(batch)
    return [listed_batch(batch) for batch in (yield from with_statuses(batches))]


def _entries(batch_id: str) -> Sub:
    return (yield Recall("payments", batch_id)).get("entries", [])


def _tells_all(row: Mapping[str, JSON]) -> bool:
    return None not in (told_status(row), row.get("amount"), row.get("totalPayments"))
