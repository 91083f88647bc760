"""Batches between the ledger and the service: read, edited, and made real.

Editing and starting a batch at the same time must not both win: each first moves the batch's phase
in the ledger from where it was found, and the one that finds it moved is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from mappings import money
from mappings.batch_bodies import CACHE_SECONDS, batch_to_send, kept_of
from mappings.batch_views import EDITABLE, Batch, Entry, batch_of, is_draft, matched
from mappings.current import BALANCE, SUMMARY
from mappings.errors import NOT_FOUND, in_body, where_named
from mappings.grammar import (
    JSON,
    Call,
    Conflict,
    Failure,
    Invalid,
    NoSuchOperation,
    Problem,
    Recall,
    Record,
    Refused,
    Request,
    Together,
    Unreachable,
)
from mappings.payment_lists import batch_in, payments_in
from mappings.payouts import Sub

WRONG_STATUS = Problem("invalid_status", "The batch's status does not allow this.")

LONGEST_CHANGE = timedelta(minutes=2)
"""A change that has been under way for longer than any call takes was cut off; the next goes on."""

# Reading


def loaded(named: str) -> Sub:
    """GET /batch/:id/summary, unless it is a draft; a batch that was deleted here is not found.

    By the id that it had first, or any that it was given when a draft was made real.
    """
    batch_id, facts = yield from _known(named)
    if facts.get("phase") == "deleted":
        raise Invalid(NOT_FOUND)
    entries = (yield Recall("payments", batch_id)).get("entries", []) if facts else []
    if is_draft(facts):
        status = yield from _draft_status(facts, entries)
        entries = yield from _with_recipients(entries)
        return batch_of(batch_id, {**facts, "status": status}, entries, {}, ())
    body = yield Call("GET", SUMMARY.format(id=facts.get("upstream") or batch_id))
    payments = payments_in(body)
    if facts.get("is_new"):
        entries = yield from _named_anew(batch_id, entries, payments)
    return batch_of(batch_id, facts, entries, batch_in(body), payments)


def not_abandoned(named: str) -> Sub:
    """Raises Invalid for a batch that is only the service's, and is never to be started."""
    alias = yield Recall("alias", named)
    if alias.get("abandoned") and not (yield Recall("batch", named)):
        raise Invalid(WRONG_STATUS)


def _known(named: str) -> Sub:
    """The id that a batch had first, and its facts; none for a batch made elsewhere."""
    facts = yield Recall("batch", named)
    if facts:
        return named, facts
    alias = yield Recall("alias", named)
    if alias.get("abandoned"):
        raise Invalid(NOT_FOUND)
    if alias.get("id"):
        return alias["id"], (yield Recall("batch", alias["id"]))
    return named, facts


def _named_anew(
    batch_id: str, entries: Sequence[Entry], payments: Sequence[dict[str, JSON]]
) -> Sub:
    """Keeps which payment of a batch just made real is which of the draft."""
    found = _found_again(entries, payments)
    aliases = [
        Record("alias", one["upstream"], {"id": one["id"], "batch": batch_id}) for one in found
    ]
    kept = Record("payments", batch_id, {"entries": found})
    yield Record("batch", batch_id, {"is_new": None}, also=(kept, *aliases))
    return found


def _with_recipients(entries: Sequence[Entry]) -> Sub:
    """GET /recipients/:id for each recipient of whom no more than the id is known."""
    unknown = [one["recipient"]["id"] for one in entries if "name" not in one["recipient"]]
    ids = list(dict.fromkeys(unknown))
    if not ids:
        return entries
    calls = [Call("GET", f"/recipients/{id_}", keeps=CACHE_SECONDS) for id_ in ids]
    answers = yield Together(calls)
    found = {
        id_: kept_of(answer["recipient"])
        for id_, answer in zip(ids, answers, strict=True)
        if not isinstance(answer, Exception)
    }
    return [
        {**one, "recipient": {**found.get(one["recipient"]["id"], {}), **one["recipient"]}}
        for one in entries
    ]


def _draft_status(facts: Mapping[str, JSON], entries: Sequence[Entry]) -> Sub:
    """What the service would say: open, or pending while the balance does not cover it."""
    needed = money.total(entry.get("sourceAmount", "0") for entry in entries)
    try:
        balances = balances_in((yield Call("GET", BALANCE)))
    except Failure:
        return "open"
    held = [
        money.amount_of(entry.get("amount"))
        for entry in balances
        if entry.get("currency") == facts.get("currency")
    ]
    enough = needed is None or sum(filter(None, held), money.CENT * 0) >= needed
    return "open" if enough else "pending"


def balances_in(body: JSON) -> list[dict[str, JSON]]:
    """The entries of a balance answer: an object of them by currency, or a list."""
    given = body.get("balances", body.get("balance", {}))
    if isinstance(given, dict):
        named = {name: one for name, one in given.items() if isinstance(one, dict)}
        return [{"currency": name, **one} for name, one in named.items()]
    return [one for one in given or [] if isinstance(one, dict)]


# Changing


def moved(batch: Batch, phase: str, now: datetime) -> Sub:
    """Takes the batch for one change; Invalid where another has it, or its status is past that."""
    if batch.status not in EDITABLE or _is_taken(batch, now):
        raise Invalid(WRONG_STATUS)
    found = {name: batch.facts.get(name) for name in ("phase", "version", "since")}
    facts: dict[str, JSON] = {"phase": phase, "since": now.isoformat()}
    if not batch.facts:
        facts |= {"upstream": batch.id, "version": 0, "currency": batch.currency}
    try:
        yield Record("batch", batch.id, facts, find=found)
    except Conflict:
        raise Invalid(WRONG_STATUS) from None


def _is_taken(batch: Batch, now: datetime) -> bool:
    if batch.facts.get("phase") in (None, "sent", "draft"):
        return False
    return now - datetime.fromisoformat(batch.facts["since"]) < LONGEST_CHANGE


def tried(batch: Batch, call: Call, told: Callable[[Refused], Refused] = lambda one: one) -> Sub:
    """Makes the call for which a batch was taken; gives it back as it was where nothing happened."""
    try:
        return (yield call)
    except Refused as refused:
        yield from _released(batch)
        raise told(refused) from None
    except Unreachable:
        yield from _released(batch)
        raise


def _released(batch: Batch) -> Sub:
    phase = "draft" if batch.is_draft else "sent"
    yield Record("batch", batch.id, {"phase": phase, "since": None})


Apply = Callable[[Sequence[Entry]], list[Entry]]
"""What an edit makes of the entries; what it adds has an id of ours."""


def edited(batch: Batch, request: Request, call: Call, apply: Apply) -> Sub:
    """Makes an edit by the inferred operation, or where there is none, in a draft.

    From the first edit of that kind on, the batch is a draft in the ledger and the one that the
    service has is abandoned: it is never started through the gateway.
    """
    yield from moved(batch, "editing", request.now)
    if batch.is_draft:
        yield from _drafted(batch, request, apply(batch.entries), ())
        return
    try:
        yield from tried(batch, call, where_named)
    except NoSuchOperation:
        yield from _drafted(batch, request, apply(entries_of(batch)), (batch.upstream,))
    else:
        there = {payment["id"] for payment in batch.payments}
        kept = [_without_our_id(entry, there) for entry in apply(entries_of(batch))]
        entries = Record("payments", batch.id, {"entries": kept})
        yield Record("batch", batch.id, free(batch, "sent"), also=(entries,))


def _without_our_id(entry: Entry, there: set[JSON]) -> Entry:
    """What the service added it gave an id of its own, which is seen when it is next read."""
    if entry.get("id") in there:
        return entry
    return {name: value for name, value in entry.items() if name != "id"}


def _drafted(batch: Batch, request: Request, entries: list[Entry], abandoned: Sequence[str]) -> Sub:
    facts = {
        **free(batch, "draft"),
        "upstream": None,
        "abandoned": [*batch.facts.get("abandoned", []), *abandoned],
        "currency": batch.currency,
        "description": batch.given.get("description") or batch.facts.get("description"),
        "createdAt": batch.given.get("createdAt") or batch.facts.get("createdAt"),
        "updatedAt": stamp(request.now),
    }
    kept = Record("payments", batch.id, {"entries": entries})
    left = [Record("alias", upstream, {"abandoned": True}) for upstream in abandoned]
    there = {entry["id"] for entry in entries}
    gone = [one["id"] for one in batch.payments if one["id"] not in there]
    where = [Record("alias", id_, {"batch": batch.id, "gone": None}) for id_ in there]
    where += [Record("alias", id_, {"gone": True}) for id_ in gone]
    yield Record("batch", batch.id, facts, also=(kept, *left, *where))


def free(batch: Batch, phase: str) -> dict[str, JSON]:
    """The facts with which a change is over; who read the batch before it finds another version."""
    return {"phase": phase, "since": None, "version": (batch.facts.get("version") or 0) + 1}


def entries_of(batch: Batch) -> list[Entry]:
    """Every payment of a batch as an entry, also those that were made elsewhere."""
    names = ("id", "upstream", "recipient", "sourceAmount", "memo", "createdAt", "updatedAt")
    entries = []
    for payment in batch.payments:
        entry = {name: payment[name] for name in names if payment.get(name) is not None}
        if payment.get("targetAmount") and not _follows_from_source(batch, payment):
            entry |= {name: payment[name] for name in ("targetAmount", "targetCurrency")}
            entry.pop("sourceAmount", None)
        entries.append(entry)
    return entries


def _follows_from_source(batch: Batch, payment: Mapping[str, JSON]) -> bool:
    """Whether the target amount is the service's reckoning: what was asked is the source amount."""
    for entry in batch.entries:
        if payment["id"] in (entry.get("id"), entry.get("upstream")):
            return bool(entry.get("sourceAmount"))
    return bool(payment.get("sourceAmount"))


def stamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Making a draft real


def made_real(batch: Batch, request: Request) -> Sub:
    """POST /batches for a draft, once, when a quote, a summary or the start needs it.

    Returns the batch as it then is; the ids that clients know stay. A batch that is no draft is
    returned as it is.
    """
    if not batch.is_draft:
        return batch
    yield from moved(batch, "making", request.now)
    description = batch.facts.get("description")
    body = batch_to_send(
        str(batch.currency), description, batch.entries, memo=request.manners.send_memo
    )
    made = batch_in((yield from tried(batch, Call("POST", "/batches", body), in_body)))
    upstream = made["id"]
    facts = {**free(batch, "sent"), "upstream": upstream, "status": None, "is_new": True}
    renamed = Record("alias", upstream, {"id": batch.id})
    yield Record("batch", batch.id, facts, also=(renamed,))
    return (yield from loaded(batch.id))


def _found_again(entries: Sequence[Entry], payments: Sequence[dict[str, JSON]]) -> list[Entry]:
    """The entries of a draft with the ids that their payments have now; matched by what they pay."""
    bare = [{**entry, "id": None, "upstream": None, "ours": entry["id"]} for entry in entries]
    found = []
    for payment, entry in matched(payments, bare):
        if entry is not None:
            kept = {name: value for name, value in entry.items() if name != "ours"}
            found.append({**kept, "id": entry["ours"], "upstream": payment["id"]})
    return found
