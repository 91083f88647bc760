"""Batches (legacy interface, section 4.3): nine operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from mappings import batch_bodies, legacy, money, settling, summaries
from mappings.banking import empty, invalid
from mappings.batch_bodies import Sent, sent_in
from mappings.batch_reads import (
    WRONG_STATUS,
    by_balance,
    loaded,
    loaded_together,
    not_abandoned,
    with_status,
    with_statuses,
)
from mappings.batch_views import (
    Batch,
    Called,
    as_first_made,
    batch_answer,
    batch_of,
    is_draft,
    listed_batch,
    payees,
    present,
    told_status,
    whole_answer,
    with_entries,
)
from mappings.current import BALANCE, SUMMARY
from mappings.drafts import Edit, changed, edited, free, made_real, moved, stamp, tried
from mappings.errors import NOT_FOUND, in_body
from mappings.funds import balances_in
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Failure,
    Flow,
    Invalid,
    NoSuchOperation,
    Operation,
    Problem,
    Recall,
    Record,
    Refused,
    Request,
    Together,
    Unreachable,
)
from mappings.ids import known_as, made
from mappings.matching import Entry
from mappings.paging import page_of, pages_to_read
from mappings.payment_lists import batch_in, payments_told
from mappings.payouts import Sub
from mappings.rows import Rows, each, joined, kept, keyed, packed

# Create


def create_batch(request: Request) -> Flow:
    """POST /batches

    GET  /recipients?email=  once for each distinct address, side by side
    POST /batches
    GET  /batch/:id/summary  where the answer to the create does not tell all
    """
    body = request.body
    payments = sent_in(body.get("payments"), problems=request.problems)
    request.refuse(
        *batch_bodies.currency_problems(body, request.problems),
        *chain.from_iterable(map(batch_bodies.payment_problems, payments)),
    )
    currency = str(batch_bodies.batch_currency(body))
    recipients = yield from batch_bodies.recipients_of(payments, currency)
    entries = each(batch_bodies.entry_of, payments, recipients)
    memo, description = request.manners.send_memo, body.get("description")
    sent = batch_bodies.batch_to_send(currency, description, entries, memo=memo)
    names = batch_bodies.Names(_OF_A_CREATE, {"payments": payments}, batch_bodies.names_of)
    call = Call(
        "POST",
        "/batches",
        sent,
        sent_as=names,
        settle=settling.created_batch(sent),
        known_by=settling.known_by_batch(sent),
    )
    try:
        answered = yield call
    except Refused as refused:
        raise in_body(refused) from None
    given = batch_in(answered)
    facts = {
        "phase": "sent",
        "version": 1,
        "upstream": given["id"],
        "currency": currency,
        "description": description,
        "createdAt": given.get("createdAt") or stamp(request.now),
        "updatedAt": given.get("updatedAt") or stamp(request.now),
    }
    yield with_entries(given["id"], facts, entries)
    id_, found = str(given["id"]), payments_told(answered)
    batch = batch_of(id_, facts, entries, given, found)
    if not (given.get("status") and given.get("createdAt") and (found or not entries)):
        try:
            read = yield Call("GET", SUMMARY.format(id=id_))
        except Failure as failure:
            # It is made: a client told otherwise would make it again.
            batch = replace(batch_of(id_, facts, entries, {}, None), given=given)
            if isinstance(failure, Unreachable):  # nor is it kept waiting for one more read
                batch = replace(batch, computed="open")
        else:
            told = {**given, **present(batch_in(read))}
            there = payments_told(read)
            batch = batch_of(id_, facts, entries, told, found if there is None else there)
    return Answer({"batch": batch_answer((yield from with_status(batch)))})


_OF_A_CREATE = {
    "currency": "sourceCurrency",
    "description": "description",
    "payments": "payments",
}


# Read


def read_batch(request: Request) -> Flow:
    """GET /batches/:id

    GET /batch/:id/summary
    GET /balance            where no status is told, as for a draft
    """
    batch = yield from with_status((yield from loaded(request.ids["id"])))
    words = yield from batch_bodies.facts_of_all(payees(batch.payments))
    return Answer({"batch": whole_answer(batch, words)})


def list_batches(request: Request) -> Flow:
    """GET /batches

    GET /batches            where the service has it, all of it, several pages at a time; what the ledger
                            knows fills in, or is the list
    GET /batch/:id/summary  of the page's batches, those of which the list does not tell all
    GET /balance            where no status is told, as for drafts
    """
    known = yield Recall("batch")
    listed = yield from _listed(known)
    wanted = request.query.get("search", "").casefold()
    names = (yield known_as(listed)) if wanted else {}
    rows = [row for row in listed if wanted in names.get(row["id"], row["id"]).casefold()]
    rows.sort(key=lambda row: str(row["id"]))
    rows.sort(key=lambda row: str(row.get("createdAt") or ""), reverse=True)
    those, counts = page_of(request.query).of(rows)
    shown = yield from _rows(those, known)
    return Answer({"batches": shown, "meta": counts})


def _listed(known: Mapping[str, Mapping[str, JSON]]) -> Sub:
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
            bodies = yield from _read(range(number, min(pages, number + AT_ONCE - 1) + 1))
        except NoSuchOperation:
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


AT_ONCE = 8
"""Pages of a list that are read side by side, once it is known that there are so many."""


def _read(numbers: Sequence[int]) -> Sub:
    queries = [{"page": str(number), "pageSize": "100"} for number in numbers]
    first, *others = (Call("GET", "/batches", query=query, witness=()) for query in queries)
    if not others:
        return [(yield first)]
    given = yield Together([first, *others])
    for one in given:
        if isinstance(one, Exception):
            raise one
    return given


def _rows(rows: Sequence[Mapping[str, JSON]], known: Mapping[str, Mapping[str, JSON]]) -> Sub:
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


def read_batch_summary(request: Request) -> Flow:
    """GET /batches/:id/summary

    POST /batches           for a draft: a summary is of a batch that the service has
    GET  /batch/:id/summary
    GET  /balance
    """
    batch = yield from made_real((yield from loaded(request.ids["id"])), request, waits=True)
    balances = balances_in((yield Call("GET", BALANCE)))
    shown = summaries.summary(by_balance(batch, balances), balances, stamp(request.now))
    return Answer({"batchSummary": shown})


# Change


def update_batch(request: Request) -> Flow:
    """PATCH /batches/:id

    GET   /batch/:id/summary  the payments that there are
    GET   /recipients?email=  for payments to add, once for each distinct address
    PATCH /batches/:id        where the service has it, else the batch becomes a draft
    """
    yield from changed(request, lambda batch: _with_other_payments(batch, request))
    return Answer({"object": "updated"})


def _with_other_payments(batch: Batch, request: Request) -> Sub:
    asked = _Changes.of(request, batch)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    request.refuse(*_change_problems(batch, asked))
    if not asked:
        return
    recipients = yield from batch_bodies.recipients_of(asked.added, batch.currency)
    added = packed(each(partial(_entry, request, batch), asked.added, recipients, asked.places))
    call = _change(request, batch, asked, added)
    changes = partial(_by_id, asked)
    gone = each(lambda one: asked.known(one).id, asked.removed)
    yield from edited(batch, request, call, Edit(added, changes, gone))


class _Changes(NamedTuple):
    """What is to become of a batch's payments. ``called`` are those that are named."""

    added: Sequence[Sent]
    changed: Sequence[Sent]
    removed: Sequence[Sent]
    called: Mapping[str, Called]

    @classmethod
    def of(cls, request: Request, batch: Batch) -> _Changes:
        body = request.body
        sent = sent_in(body.get("payments"), problems=request.problems)
        updates = sent_in(body.get("update_payments"), "update_payments")
        changed = joined(kept(sent, _is_named), updates)
        removed = sent_in(body.get("remove_payments"), "remove_payments")
        added = kept(sent, _is_new)
        if isinstance(changed, Rows) or isinstance(removed, Rows):
            return cls(added, changed, removed, batch.called(None))
        names = frozenset(str(one.body.get("id")) for one in chain(changed, removed))
        return cls(added, changed, removed, batch.called(names) if names else {})

    def __bool__(self) -> bool:
        """Whether anything is."""
        changes = any(batch_bodies.changes(one.body) for one in self.changed)
        return bool(self.added or self.removed) or changes

    @property
    def places(self) -> Sequence[int]:
        return range(len(self.added))

    def known(self, sent: Sent) -> Called:
        return self.called[str(sent.body.get("id"))]


def _by_id(asked: _Changes) -> Mapping[str, Mapping[str, JSON]]:
    changes = ((asked.known(one).id, batch_bodies.changes(one.body)) for one in asked.changed)
    return keyed(asked.changed, changes)


def _is_named(sent: Sent) -> bool:
    return bool(sent.body.get("id"))


def _is_new(sent: Sent) -> bool:
    return not _is_named(sent)


def _entry(
    request: Request, batch: Batch, sent: Sent, recipient: Mapping[str, JSON], number: int
) -> Entry:
    id_ = made("P", request.seed, batch.id, str(number))
    return batch_bodies.entry_of(sent, recipient, id_=id_)


def _change_problems(batch: Batch, asked: _Changes) -> Iterator[Problem]:
    seen = bytearray(len(batch.payments))
    for one in chain(asked.changed, asked.removed):
        if not one.body.get("id"):
            yield empty(f"{one.place}id")
            continue
        there = asked.called.get(str(one.body["id"]))
        if there is None:
            yield invalid(f"{one.place}id", "is not a payment of this batch")
            continue
        if seen[there.place]:
            yield invalid(f"{one.place}id", "is named more than once")
        seen[there.place] = True
    for one in asked.changed:
        yield from batch_bodies.amount_problems(one)
    for one in asked.added:
        yield from batch_bodies.added_problems(one, batch.currency)


def _change(request: Request, batch: Batch, asked: _Changes, added: Sequence[Entry]) -> Call:
    memo = request.manners.send_memo

    def update(sent: Sent) -> dict[str, JSON]:
        changed = batch_bodies.changes(sent.body, memo=memo)
        return {"id": asked.known(sent).upstream, **changed}

    lists = {
        "payments": asked.added,
        "update_payments": asked.changed,
        "remove_payments": asked.removed,
    }
    return Call(
        "PATCH",
        f"/batches/{batch.upstream}",
        {
            "payments": each(partial(_as_legacy, memo=memo), added),
            "update_payments": each(update, asked.changed),
            "remove_payments": each(lambda sent: {"id": asked.known(sent).upstream}, asked.removed),
        },
        sent_as=batch_bodies.Names(
            {name: name for name in lists}, lists, batch_bodies.names_of_change
        ),
        witness=(batch.upstream,),
        settle=settling.edited_batch(
            batch.upstream,
            batch.payments,
            batch.currency,
            added=added,
            changed=lambda: {asked.known(one).upstream: one.body for one in asked.changed},
            removed=lambda: [asked.known(one).upstream for one in asked.removed],
        ),
    )


def _as_legacy(entry: Entry, *, memo: bool) -> dict[str, JSON]:
    """A payment to add, as the legacy document shows it: the payload that is presumed."""
    return {"recipient": {"id": entry["recipient"]["id"]}, **batch_bodies.changes(entry, memo=memo)}


def generate_quote(request: Request) -> Flow:
    """POST /batches/:id/generate-quote

    POST /batches                     for a draft
    POST /batches/:id/generate-quote
    GET  /batch/:id/summary           rates and amounts as they are now
    GET  /balance                     where no status is told
    """
    batch = yield from made_real((yield from loaded(request.ids["id"])), request, waits=True)
    settle = settling.quoted(batch.upstream, batch.given.get("quoteExpiredAt"))
    call = Call("POST", f"/batches/{batch.upstream}/generate-quote", settle=settle)
    quoted = batch_in((yield call))
    batch = yield from loaded(batch.id)
    batch = replace(batch, given={**present(quoted), **present(batch.given)})
    batch = yield from with_status(batch)
    words = yield from batch_bodies.facts_of_all(payees(batch.payments))
    return Answer({"batch": whole_answer(batch, words)})


# Start


def start_batch(request: Request) -> Flow:
    """POST /batches/:id/start-processing

    GET  /batch/:id/summary            the status, and what is compared with the ledger
    POST /batches                      for a draft
    POST /batches/:id/start-processing once
    GET  /batch/:id/summary            where the answer does not tell all, or another amount
    """
    yield from not_abandoned(request.ids["id"])
    batch = yield from made_real((yield from loaded(request.ids["id"])), request)
    if not batch.is_editable or (batch.tells_payments and not batch.filling):
        raise Invalid(WRONG_STATUS)
    notices = _verified(batch, request)
    yield from moved(batch, "starting", request.now)
    path, settle = f"/batches/{batch.upstream}/start-processing", settling.started(batch.upstream)
    call = Call("POST", path, settle=settle, prompt=True)
    answered = yield from tried(batch, call)
    facts = {**free(batch, "sent"), "started": stamp(request.now)}
    yield Record("batch", batch.id, facts)
    given = as_first_made(batch.facts, present(batch_in(answered)))
    batch = replace(batch, facts={**batch.facts, **facts})
    started = replace(batch, given={**batch.given, "status": None, **given})
    tells_all = given.get("status") and given.get("sentAt")
    if not tells_all or _is_another(given.get("amount"), batch):
        try:
            batch = yield from loaded(batch.id)
        except Failure:
            pass  # It is started: a client told otherwise would start it again.
        else:
            started = replace(batch, given={**given, **present(batch.given)})
    return Answer({"batch": batch_answer(started)}, notices)


def _is_another(amount: JSON, batch: Batch) -> bool:
    """Whether a start has changed what the service told before: it may rate payments anew."""
    told, before = money.amount_of(amount), money.amount_of(batch.given.get("amount"))
    return None not in (told, before) and told != before


def _verified(batch: Batch, request: Request) -> tuple[str, ...]:
    """What the service is about to pay, against what was asked for through the gateway."""
    made_here = batch.facts.get("createdAt") and not batch.facts.get("elsewhere")
    if request.manners.verify_before_start == "off" or not made_here:
        return ()
    if batch_bodies.is_as_asked(batch):
        return ()
    if request.manners.verify_before_start == "refuse":
        raise Invalid(WRONG_STATUS)
    return ("a batch was started whose payments are not those asked for through the gateway",)


# Delete


def delete_batch(request: Request) -> Flow:
    """DELETE /batches/:id

    GET    /batch/:id/summary
    DELETE /batches/:id        where the service has it, else its batch is abandoned
    """
    batch = yield from loaded(request.ids["id"])
    yield from _deleted(batch, request)
    return Answer({"object": "deleted"})


def delete_batches(request: Request) -> Flow:
    """DELETE /batches

    GET    /batch/:id/summary  each, side by side: all are checked before the first is deleted
    DELETE /batches/:id        each

    When one is refused, those before it stay deleted; the same request again deletes the rest.
    """
    ids = list(dict.fromkeys(request.body["ids"]))
    request.refuse(*([] if ids else [empty("ids")]))
    if not all(_BATCH_ID.fullmatch(id_) for id_ in ids):
        raise Invalid(NOT_FOUND)
    together = made("D", *sorted(ids))
    batches = yield from loaded_together((yield from _left(ids, together)) or ids)
    for batch in batches:
        if isinstance(batch, Exception):
            raise batch
    if not all(batch.is_editable for batch in batches):
        raise Invalid(WRONG_STATUS)
    for batch in batches:
        yield from _deleted(batch, request, together)
    return Answer({"object": "deleted"})


def _left(ids: Sequence[str], together: str) -> Sub:
    """Those that a request to delete the same batches has not deleted before."""
    left = []
    for id_ in ids:
        facts = yield Recall("batch", id_)
        if (facts.get("phase"), facts.get("together")) != ("deleted", together):
            left.append(id_)
    return left


def _deleted(batch: Batch, request: Request, together: str | None = None) -> Sub:
    yield from moved(batch, "deleting", request.now)
    abandoned = list(batch.facts.get("abandoned", []))
    if not batch.is_draft:
        id_ = batch.upstream
        settle = settling.deleted_batch(id_)
        call = Call("DELETE", f"/batches/{id_}", witness=(id_,), settle=settle)
        try:
            yield from tried(batch, call)
        except NoSuchOperation:
            abandoned.append(batch.upstream)
    left = tuple(Record("alias", upstream, {"abandoned": True}) for upstream in abandoned)
    facts = {"phase": "deleted", "since": None, "abandoned": abandoned, "together": together}
    yield Record("batch", batch.id, facts, also=left)


_BATCH_ID = re.compile("B-[A-Za-z0-9]+")
_ALL, _ONE = "/batches", "/batches/{id}"
_INFERRED = "the path is presumed to be the legacy one; without it the batch becomes a draft here"
_EDITABLE = "an open batch can be edited and deleted (current interface, section 1.8)"

OPERATIONS = (
    Operation(
        "POST",
        _ALL,
        create_batch,
        "4.3",
        "emulated",
        "what the answer leaves out is read from the summary",
        takes=legacy.BatchBody,
        gives=legacy.BatchAnswer,
        rests_on="a payment's memo is taken; an answer's payload is not shown",
    ),
    Operation(
        "GET",
        _ALL,
        list_batches,
        "4.3",
        "inferred",
        "the ledger is the list where the service has none",
        gives=legacy.BatchesAnswer,
        query=legacy.SearchQuery,
        rests_on="GET /batches, which the document does not list",
    ),
    Operation(
        "DELETE",
        _ALL,
        delete_batches,
        "4.3",
        "inferred",
        "each is deleted, once all were checked",
        takes=legacy.BatchIdsBody,
        gives=legacy.DoneAnswer,
        rests_on=_EDITABLE,
    ),
    Operation(
        "GET",
        _ONE,
        read_batch,
        "4.3",
        "emulated",
        "the summary, and what was asked for",
        gives=legacy.WholeBatchAnswer,
        rests_on="a summary has all payment details (section 4.3)",
    ),
    Operation(
        "PATCH",
        _ONE,
        update_batch,
        "4.3",
        "inferred",
        _INFERRED,
        takes=legacy.BatchChangeBody,
        gives=legacy.DoneAnswer,
        rests_on=_EDITABLE,
    ),
    Operation(
        "DELETE",
        _ONE,
        delete_batch,
        "4.3",
        "inferred",
        "without the path the service's batch is abandoned and never started",
        gives=legacy.DoneAnswer,
        rests_on=_EDITABLE,
    ),
    Operation(
        "POST",
        f"{_ONE}/generate-quote",
        generate_quote,
        "4.3",
        "emulated",
        "the quote, then the summary",
        gives=legacy.WholeBatchAnswer,
    ),
    Operation(
        "GET",
        f"{_ONE}/summary",
        read_batch_summary,
        "4.3",
        "emulated",
        "computed from payments and balance where the service does not give it",
        gives=legacy.SummaryAnswer,
        may_write=True,
    ),
    Operation(
        "POST",
        f"{_ONE}/start-processing",
        start_batch,
        "4.3",
        "emulated",
        "compared with what was asked for, then started once",
        gives=legacy.BatchAnswer,
    ),
)
