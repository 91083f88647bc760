"""Comparison of the gateway's records with the service, for `payout-gateway reconcile`.

The flows only read from the service. Their answers contain ``differences``, each with a ``kind``
and a description (``says``) without personal data. One difference is also recorded, because the
service is authoritative for it: that a batch was started outside the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from mappings import money
from mappings.batch_bodies import is_as_asked
from mappings.batch_reads import load_batch
from mappings.batch_views import EDITABLE, Batch, derive_batch_status, drop_nulls
from mappings.current import SUMMARY
from mappings.drafts import is_unlocked
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Flow,
    Invalid,
    NoSuchOperation,
    Recall,
    Record,
    Refused,
)
from mappings.ids import needs_stand_in
from mappings.paging import count_pages_to_read
from mappings.payment_lists import extract_batch
from mappings.payouts import Sub

Found = Mapping[str, JSON]


def _answer(*differences: Found, **more: JSON) -> Answer:
    return Answer({"differences": list(differences), **more})


def _difference(kind: str, says: str, **more: JSON) -> Found:
    return {"kind": kind, "says": says, **more}


# Batches that the gateway has records of


def check_batch(batch_id: str, now: str, *, is_busy: bool) -> Flow:
    """GET /batch/:id/summary, unless it is deleted or a draft

    ``is_busy`` means that a request that writes to the batch is running, so it may be changing now.
    Raises Conflict if the batch was changed concurrently.
    """
    facts = yield Recall("batch", batch_id)
    phase = facts.get("phase")
    stuck = _difference("stuck", f"a change of it ({phase}) was begun, but no request continues it")
    # A lock without a running request is one that no process will release.
    left = [] if is_unlocked(facts) or is_busy else [stuck]
    if phase == "deleted" or facts.get("upstream") is None:
        return _answer(*left)
    try:
        batch = yield from load_batch(batch_id)
    except Invalid:  # deleted meanwhile
        return _answer()
    except Refused as refused:
        if refused.status != 404:
            raise
        return _answer(*left, _difference("missing", "the service does not have it"))
    found = [*left, *(yield from _status_agrees(batch, now))]
    if is_unlocked(facts) and not is_busy:
        found += yield from _payments_agree(batch)
    return _answer(*found)


def _status_agrees(batch: Batch, now: str) -> Sub:
    status, started = derive_batch_status(drop_nulls(batch.given)), batch.facts.get("started")
    if status is None or not is_unlocked(batch.facts):
        return []
    if started and status in EDITABLE:
        says = f"it was started through the gateway at {started}, but its status there is {status}"
        return [_difference("not_started", says)]
    if started or status in EDITABLE:
        return []
    when = batch.given.get("sentAt") or now
    says = f"it was started outside the gateway ({when}): its status there is {status}"
    found = {name: batch.facts.get(name) for name in ("phase", "version", "started")}
    yield Record("batch", batch.id, {"started": when}, find=found)
    return [_difference("started_elsewhere", f"{says}; this is now recorded", recorded=True)]


def _payments_agree(batch: Batch) -> Sub:
    """Compares the payments as `verify_before_start` does."""
    made_here = batch.facts.get("createdAt") and not batch.facts.get("elsewhere")
    if not made_here or (yield from is_as_asked(batch)):
        return []
    currency = batch.facts.get("currency")
    there, asked = _sums(batch.payments, currency), _sums(batch.entries, currency)
    says = f"it pays {there}, but {asked} was requested through the gateway"
    if there == asked:
        says = f"it pays {there} as requested, but to other recipients or in other amounts"
    return [_difference("payments", says)]


def _sums(payments: Sequence[Mapping[str, JSON]], currency: JSON) -> str:
    """Describes the number of payments, and their total by currency."""
    sums: dict[str, Decimal] = {}
    for payment in payments:
        side = "source" if payment.get("sourceAmount") else "target"
        of = str(currency if side == "source" else payment.get("targetCurrency"))
        amount = money.parse_amount(payment.get(f"{side}Amount")) or Decimal(0)
        sums[of] = money.add_decimals(sums.get(of, Decimal(0)), amount)
    told = " and ".join(
        f"{money.format_amount(amount)} {of}" for of, amount in sorted(sums.items())
    )
    number = len(payments)
    return f"{number} payment{'' if number == 1 else 's'}" + (f" of {told}" if told else "")


# Superseded batches


def check_abandoned_batch(upstream: str, now: str) -> Flow:
    """GET /batch/:id/summary; reports a superseded batch that was started, as it must never be."""
    try:
        given = extract_batch((yield Call("GET", SUMMARY.format(id=upstream))))
    except Refused as refused:
        if refused.status != 404:
            raise
        return _answer()
    status = derive_batch_status(drop_nulls(given))
    if status is None or status in EDITABLE:
        return _answer()
    known = yield Recall("alias", upstream)
    when = known.get("started") or given.get("sentAt") or now
    # Recorded once, so that a later run reports the same time and does not alert again.
    if not known.get("started"):
        yield Record("alias", upstream, {"started": when})
    says = (
        f"it is superseded, but was started outside the gateway ({when}): its status there is "
        f"{status}. Its payments were changed or deleted, or another batch pays them"
    )
    told = _difference("abandoned_started", says, alert=True, recorded=not known.get("started"))
    return _answer(told)


# Batches that the gateway has no records of


def find_unknown_batches() -> Flow:
    """GET /batches, if the service has it; else ``listed`` is None."""
    known, aliases = (yield Recall("batch")), (yield Recall("alias"))
    ours = {*known, *aliases, *(facts.get("upstream") for facts in known.values())}
    found: dict[str, JSON] = {}
    number, pages, seen = 1, 1, 0
    while number <= pages:
        query = {"page": str(number), "pageSize": "100"}
        try:
            body = yield Call("GET", "/batches", query=query, witness=())
        except NoSuchOperation:
            return _answer(listed=None)
        given = [row for row in body.get("batches") or [] if isinstance(row, dict)]
        found |= {str(row.get("id")): derive_batch_status(drop_nulls(row)) for row in given}
        pages = count_pages_to_read(body, number, is_new=len(found) > seen)
        number, seen = number + 1, len(found)
    new = {id_: status for id_, status in found.items() if id_ not in ours}
    return _answer(listed=len(found), unknown=new)


# Recipients


def find_unnamed_recipients() -> Flow:
    """GET /recipients, newest first; ``unnamed`` are those that have no alias id yet.

    Stops after a page without any: older recipients got their alias ids when they were last listed.
    """
    found: list[JSON] = []
    number, pages = 1, 1
    while number <= pages:
        newest = {"orderBy": "createdAt", "sortBy": "desc"}
        query = {"page": str(number), "pageSize": "100", **newest}
        body = yield Call("GET", "/recipients", query=query)
        ids = [row["id"] for row in body.get("recipients") or [] if row.get("id")]
        names = yield Recall("legacy id", ids=tuple(ids))
        new = [id_ for id_ in ids if id_ not in names and needs_stand_in("recipient", id_, "all")]
        found += new
        pages = count_pages_to_read(body, number, is_new=bool(new))
        number += 1
    return _answer(unnamed=found)


def check_deleted_recipient(recipient_id: str) -> Flow:
    """GET /recipients/:id; reports a recipient that clients deleted but that can be paid."""
    facts = yield Recall("recipient", recipient_id)
    try:
        given: Any = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
    except Refused as refused:
        if refused.status != 404:
            raise
        return _answer()
    if given.get("status") == "archived" or not facts.get("deleted"):
        return _answer()
    if facts.get("still_there"):
        says = "its creation failed and could not be undone; archive it in the dashboard"
        return _answer(_difference("left_over", says))
    says = f"clients deleted it, but its status at the service is {given.get('status')}"
    return _answer(_difference("active_again", says))
