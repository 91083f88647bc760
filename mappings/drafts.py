"""Batch locks, and drafts: batches that are edited in the gateway and submitted to the service.

Of an edit and a start of one batch at the same time only one may win, or a client pays what it has
just removed. Each acquires the batch's lock: it sets the fact ``phase`` on condition that the facts
are as it loaded them. A request that finds the lock taken waits and loads the batch again; it is
never refused for good because of another request. An edit also waits for changes that clients have
sent with their own signature, because a payment that such a change adds may be missing from the
summary, and a draft made from that would lose it. In addition, the transaction that records an
upstream write rejects one that names a superseded batch.

A payment that is being added is among the batch's facts (``ADDS``) until its outcome is known. While it is in
doubt, the batch is unlocked for other adds only (contract, section 7, Blocking).
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from mappings import money, settling
from mappings.batch_bodies import AMOUNTS, apply_changes, build_batch_body
from mappings.batch_reads import WRONG_STATUS, load_batch, load_batch_with_facts
from mappings.batch_views import Batch, build_batch_record
from mappings.errors import (
    NOT_FOUND,
    OTHER_IN_DOUBT,
    convert_not_found,
    convert_not_found_in_fields,
)
from mappings.grammar import (
    JSON,
    Await,
    Call,
    Conflict,
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    Problem,
    Recall,
    Record,
    Refused,
    Request,
    Step,
    Unknown,
    Unreachable,
)
from mappings.ids import derive_id
from mappings.matching import Entry, Payment
from mappings.payment_lists import extract_batch
from mappings.payouts import Sub
from mappings.rows import chain_rows, filter_rows, map_rows

CURRENCY_UNKNOWN = Problem(
    "invalid_status", "The batch cannot be changed: nothing tells in which currency it is."
)
PAYEE_UNKNOWN = Problem(
    "invalid_status", "The batch cannot be changed: nothing tells whom all of its payments pay."
)

BEING_CHANGED = Problem(
    "internal_server_error",
    "Another change of this batch is under way; nothing was done. Try again later.",
)

# Edits, one at a time


def changed(
    request: Request,
    change: Callable[[Batch], Sub],
    is_open: Callable[[Mapping[str, JSON]], bool] | None = None,
) -> Sub:
    """Run ``change``, an edit that acquires the lock, on the batch, and return its result.

    ``is_open`` says of the batch's facts whether this edit may acquire the lock.

    The first attempt loads the batch without a lock, which is enough if no other edit is under way.
    If it conflicts, the second attempt acquires the lock first: clients add payments to one batch
    by many requests at a time, and each must load the batch only once.
    """
    id_ = request.ids["id"]
    signed = yield Recall(SIGNED, id_)
    batch: Batch = yield from load_batch(id_)
    now = request.now
    # State is stored under the first id: signed changes of another id are not those of the batch.
    if (
        batch.id == id_
        and has_no_active_signed_change(now, signed)
        and has_no_lost_signed_change(now, signed)
    ):
        try:
            return (yield from change(replace(batch, signed=signed)))
        except Conflict:
            pass
    held = yield from _in_its_turn(batch.id, request, is_open or is_unlocked)
    try:
        return (yield from change(held))
    except Failure:
        yield from _let_go(held)
        raise


TURNS = 1000
"""How many edits by other requests one waits for: more than can be under way at a time."""


def _in_its_turn(
    batch_id: str, request: Request, is_open: Callable[[Mapping[str, JSON]], bool]
) -> Sub:
    """Acquire the lock for an edit, then load the batch: a waiting request loads it only once."""
    # The value identifies the lock when it is released, so it is unique even with a coarse clock.
    since = f"{request.now.isoformat()} {request.seed}"
    for _ in range(TURNS):
        try:
            # A lost signed change may still add a payment, which the summary does not show yet.
            yield Await(SIGNED, batch_id, until=partial(has_no_lost_signed_change, request.now))
            facts = yield Await("batch", batch_id, until=is_open)
        except Conflict:
            break
        if facts.get("phase") == "deleted":
            raise Invalid(NOT_FOUND)
        # A batch created elsewhere has no facts if a start of it was refused meanwhile.
        taken = ({} if facts else build_external_batch_facts(batch_id)) | {
            "phase": "editing",
            "since": since,
        }
        try:
            yield Record("batch", batch_id, taken, find=build_batch_condition(facts))
        except Conflict:
            continue
        before = {name: facts.get(name) for name in taken}
        try:
            # While the batch is locked no signed change starts, so this wait ends.
            signed = yield Await(
                SIGNED, batch_id, until=partial(has_no_active_signed_change, request.now)
            )
        except Conflict:
            yield Record("batch", batch_id, before)
            break
        # One of them was lost meanwhile: unlock, and wait until it can no longer be executed.
        if not has_no_lost_signed_change(request.now, signed):
            yield Record("batch", batch_id, before)
            continue
        try:
            batch: Batch = yield from load_batch(batch_id)
        except Failure:
            yield Record("batch", batch_id, before)
            raise
        return replace(batch, is_held=True)
    raise Halted(BEING_CHANGED, retry_after=1)


def leave_unchanged(batch: Batch) -> Sub:
    """Finish an edit that changes nothing, and release the lock if it was acquired."""
    if batch.is_held:
        yield from _let_go(batch)


def _let_go(held: Batch) -> Sub:
    """Release a lock acquired before the batch was loaded, unless it is released already."""
    try:
        yield Record("batch", held.id, _given_back(held), find=build_batch_condition(held.facts))
    except Conflict:
        return


SIGNED = "signed"
"""The kind under which changes of a batch with a client's own signature are stored.

Each that is under way has a name of its own, with the time it began as its value; ``last`` is the
name of the last to begin, and ``lost`` when one was last found to have no response, so that it may
still be executed. With a name for each, changes that begin and end at the same time do not
conflict."""

SIGNED_SECONDS = 90
"""After which a signed change without a known end has ended: the service accepts a timestamp that
is up to 30 seconds ahead, and for 30 seconds from then; the rest is a margin."""

_LAST, _LOST = "last", "lost"


def list_active_signed_changes(signed: Mapping[str, JSON], now: datetime) -> list[str]:
    """Return the names of a batch's signed changes that are under way."""
    those = signed.keys() - {_LAST, _LOST}
    return [name for name in those if _may_go_on(signed[name], now)]


def has_no_active_signed_change(now: datetime, signed: Mapping[str, JSON]) -> bool:
    return not list_active_signed_changes(signed, now)


def has_no_lost_signed_change(now: datetime, signed: Mapping[str, JSON]) -> bool:
    """Whether no signed change without a response may still be executed."""
    return not (signed.get(_LOST) and _may_go_on(signed[_LOST], now))


def _may_go_on(since: JSON, now: datetime) -> bool:
    return (now - datetime.fromisoformat(str(since))).total_seconds() < SIGNED_SECONDS


def add_signed_change(signed: Mapping[str, JSON], name: str, now: datetime) -> dict[str, JSON]:
    """Build the facts that add a signed change and remove expired ones."""
    over = signed.keys() - {_LAST, _LOST, *list_active_signed_changes(signed, now)}
    return {**dict.fromkeys(over), name: now.isoformat(), _LAST: name}


def remove_signed_change(name: str, lost: datetime | None = None) -> dict[str, JSON]:
    """Build the facts that remove a signed change, and record when it was lost if so."""
    return {name: None} if lost is None else {name: None, _LOST: lost.isoformat()}


def build_signed_condition(signed: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build the condition that no signed change has begun since these facts were loaded."""
    return {_LAST: signed.get(_LAST)}


def _still(batch_id: str, signed: Mapping[str, JSON]) -> Record:
    return Record(SIGNED, batch_id, {}, find=build_signed_condition(signed))


def reload_batch(batch_id: str) -> Sub:
    """Wait until no change is under way, and load the batch. Raises Halted if it takes too long."""
    try:
        yield Await("batch", batch_id, until=is_unlocked)
    except Conflict:
        # Not a definite refusal: the conflict is with the client's own other requests.
        raise Halted(BEING_CHANGED, retry_after=1) from None
    return (yield from load_batch(batch_id))


def lock_batch(batch: Batch, phase: str, now: datetime) -> Sub:
    """Acquire the lock, waiting for others, and return the batch as it was at that moment."""
    for _ in range(ROUNDS):
        try:
            yield from taken(batch, phase, now)
        except Conflict:
            batch = yield from reload_batch(batch.id)
        else:
            return batch
    raise Halted(BEING_CHANGED, retry_after=1)


def taken(batch: Batch, phase: str, now: datetime, also: Sequence[Record] = ()) -> Sub:
    """Acquire the batch's lock. Raises Conflict if the batch changed since it was loaded.

    ``guards`` are further conditions, checked in the same transaction.
    """
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    if batch.is_held:
        return
    if not is_unlocked(batch.facts):
        raise Conflict("batch")
    yield _taking(batch, {"phase": phase, "since": now.isoformat()}, also)


def _taking(batch: Batch, facts: dict[str, JSON], also: Sequence[Record] = ()) -> Record:
    if not batch.facts:
        facts |= {**build_external_batch_facts(batch.id), "currency": batch.currency}
        facts |= {name: batch.given.get(name) for name in ("description", "createdAt")}
    return Record("batch", batch.id, facts, find=build_batch_condition(batch.facts), also=also)


# Adding a payment

ADDS = "adds"
"""The fact of a batch that has the bodies of payments whose add is under way or in doubt, by a name of
each add, and of those that were added meanwhile and whose response told no id."""

_IS_ADDED = "is_added"


def is_open_to_adds(facts: Mapping[str, JSON]) -> bool:
    """Whether no change of a batch is under way, but for adds that are in doubt."""
    return facts.get("phase") in _UNLOCKED


@dataclass(frozen=True, slots=True)
class Add:
    """A payment that is being added to a batch, from when it is taken for that."""

    batch: Batch
    name: str
    body: Mapping[str, JSON]
    since: str
    """By which it is seen whether the batch is still taken for this add."""

    def others(self) -> Generator[Step, Any, list[JSON]]:
        """The bodies of the other payments whose add is under way or in doubt, or told no id."""
        facts = yield Recall("batch", self.batch.id)
        adds = facts.get(ADDS) or {}
        return [body for name, body in adds.items() if name != self.name]

    @property
    def in_doubt(self) -> Record:
        """Gives the batch back to other adds, while the outcome of this one is unknown."""
        facts = build_unlocked_facts(self.batch, "sent")
        find = {"phase": "editing", "since": self.since}
        return Record("batch", self.batch.id, facts, find=find)


def begin_add(batch: Batch, request: Request, body: Mapping[str, JSON]) -> Sub:
    """Takes the batch to add a payment; Conflict if another change has or had it."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    adds = batch.facts.get(ADDS) or {}
    if body in adds.values():
        raise Halted(OTHER_IN_DOUBT, retry_after=1)
    if not (batch.is_held or is_open_to_adds(batch.facts)):
        raise Conflict("batch")
    named = {ADDS: {**adds, request.seed: body}}
    if batch.is_held:
        yield Record("batch", batch.id, named)
        return Add(batch, request.seed, body, str(batch.facts.get("since")))
    since = f"{request.now.isoformat()} {request.seed}"
    yield _taking(batch, {"phase": "editing", "since": since, **named})
    return Add(batch, request.seed, body, since)


def confirm_add(add: Add, entry: Entry) -> Sub:
    """Gives the batch back with the payment that was added; whether it was in doubt before or not."""
    facts, entries = yield from _hold(add)
    id_ = entry.get("upstream")
    # An add that came between may have seen it.
    others = filter_rows(entries, lambda one: id_ is None or id_ not in _ids_of(one))
    left = {**facts.get(ADDS, {})}
    if id_ is None:
        left[add.name] = {**add.body, _IS_ADDED: True}
    else:
        left.pop(add.name, None)
    yield build_batch_record(add.batch.id, _after_add(facts, left), chain_rows(others, [entry]))


def drop_add(add: Add) -> Sub:
    """Gives the batch back without a payment that was not added."""
    facts, _ = yield from _hold(add)
    left = {name: body for name, body in facts.get(ADDS, {}).items() if name != add.name}
    after = _after_add(facts, left)
    if facts.get("since") == add.since:  # nobody has found anything of it
        del after["version"]
    yield Record("batch", add.batch.id, after)


def _ids_of(entry: Entry) -> tuple[JSON, JSON]:
    return entry.get("id"), entry.get("upstream")


def _after_add(
    facts: Mapping[str, JSON], left: Mapping[str, Mapping[str, JSON]]
) -> dict[str, JSON]:
    """The facts with which an add is over; of those that are added nobody asks once none is in doubt."""
    is_open = any(not body.get(_IS_ADDED) for body in left.values())
    version = (facts.get("version") or 0) + 1
    return {"phase": "sent", "since": None, "version": version, ADDS: left if is_open else None}


def _hold(add: Add) -> Sub:
    """The batch's facts and entries, taken again if it was given back while the add was in doubt."""
    facts = yield Recall("batch", add.batch.id)
    if facts.get("since") == add.since:
        return facts, build_entries(add.batch)
    for _ in range(TURNS):
        facts = yield Await("batch", add.batch.id, until=is_open_to_adds)
        again = {"phase": "editing", "since": f"{add.since} again"}
        try:
            yield Record("batch", add.batch.id, again, find=build_batch_condition(facts))
        except Conflict:
            continue
        return facts, (yield Recall("payments", add.batch.id)).get("entries", [])
    raise Unknown("other changes of the batch are under way")


def build_external_batch_facts(upstream: str) -> dict[str, JSON]:
    """Build the facts to store for a batch created elsewhere, when it is first locked."""
    # A batch with facts and without an upstream id would be a draft.
    return {"upstream": upstream, "version": 0, "elsewhere": True}


def build_batch_condition(facts: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build the condition that no request has locked or changed the batch since it was loaded."""
    return {name: facts.get(name) for name in ("phase", "version", "since")}


def is_unlocked(facts: Mapping[str, JSON]) -> bool:
    """Whether no change of the batch is under way."""
    return facts.get("phase") in _UNLOCKED and not facts.get(ADDS)


_UNLOCKED = (None, "sent", "draft", "deleted")


def call_under_lock(
    batch: Batch, call: Call, told: Callable[[Refused], Refused] = lambda one: one
) -> Sub:
    """Make the call the batch was locked for; release the lock if it certainly had no effect.

    A write without a response (``Unknown``) keeps the lock: it may have been executed.
    """
    try:
        return (yield call)
    except Refused as refused:
        yield from release_batch_lock(batch)
        raise told(refused) from None
    except Unreachable:
        yield from release_batch_lock(batch)
        raise
    except Conflict:  # the upstream batch was superseded meanwhile
        yield from release_batch_lock(batch)
        raise Halted(BEING_CHANGED, retry_after=1) from None


def release_batch_lock(batch: Batch) -> Sub:
    yield Record("batch", batch.id, _given_back(batch))


def _given_back(batch: Batch) -> dict[str, JSON]:
    return {"phase": "draft" if batch.is_draft else "sent", "since": None}


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of a batch's entries, and of the batch itself.

    ``added_entries`` have ids made by the gateway; ``removed_ids`` and the keys of
    ``build_changes()`` are ids of entries. The changes are built on demand: by then the request's
    body is freed. ``facts`` are the new ``description`` and ``currency``, the latter only of a
    batch without payments.
    """

    added: Sequence[Entry] = ()
    changes: Callable[[], Mapping[str, Mapping[str, JSON]]] = dict
    gone: Sequence[JSON] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def is_of_payments(self) -> bool:
        return bool(self.added or self.gone or self.changes())

    def by_service(self, those: Sequence[Entry]) -> Sequence[Entry]:
        """Build the entries after the service has made the edit.

        Added entries have no id: the service gives them one, which the next summary shows.
        """
        return chain_rows(self._left_of(those), map_rows(_without_id, self.added))

    def in_draft(self, those: Sequence[Entry], now: str) -> Sequence[Entry]:
        """Build the entries of a draft after the edit, with the times a service would set."""
        return chain_rows(self._left_of(those, now), map_rows(partial(_dated, now), self.added))

    def _left_of(self, those: Sequence[Entry], now: str | None = None) -> Sequence[Entry]:
        gone = frozenset(self.gone)
        left = filter_rows(those, lambda one: one.get("id") not in gone) if gone else those
        changes = self.changes()
        return map_rows(partial(_changed, changes, now), left) if changes else left


def _changed(changes: Mapping[str, Mapping[str, JSON]], now: str | None, entry: Entry) -> Entry:
    its = changes.get(entry.get("id", ""))
    changed = entry if its is None else apply_changes(entry, its)
    return changed if now is None or changed == entry else {**changed, "updatedAt": now}


def _without_id(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "id"}


def _dated(now: str, entry: Entry) -> Entry:
    return {"createdAt": now, **entry, "updatedAt": now}


def edit_batch(batch: Batch, request: Request, call: Call, edit: Edit) -> Sub:
    """Make an edit with the inferred ``call``, or in a draft if the service has no such operation.

    The first edit of the second kind turns the batch into a draft and supersedes the service's
    batch, which is never started through the gateway from then on.
    """
    yield from taken(batch, "editing", request.now, (_still(batch.id, batch.signed),))
    now = format_timestamp(request.now)
    if "currency" in edit.facts and not batch.is_draft:
        yield from _remade(batch, request, call, edit)
        return
    if batch.is_draft:
        entries = edit.in_draft(batch.entries, now)
        aliases = _aliases(batch, edit.added, edit.gone)
        yield from _drafted(batch, request, entries, aliases, facts=edit.facts)
        return
    try:
        yield from call_under_lock(batch, call, convert_not_found_in_fields)
    except NoSuchOperation:
        pass
    else:
        facts = {**build_unlocked_facts(batch, "sent"), **edit.facts}
        facts |= {"description_was": None} if edit.facts else {}
        yield build_batch_record(batch.id, facts, edit.by_service(build_entries(batch)))
        return
    if not edit.is_of_payments:
        # A description changes nothing that is paid, so the service's batch need not be superseded.
        told = batch.given.get("description_told", batch.given.get("description"))
        facts = {**build_unlocked_facts(batch, "sent"), **edit.facts, "description_was": told or ""}
        yield Record("batch", batch.id, {**facts, "updatedAt": now})
        return
    if batch.currency is None:
        # Such a draft could never be submitted.
        yield from release_batch_lock(batch)
        raise Invalid(CURRENCY_UNKNOWN)
    there = _named_entries_of(batch, request)
    # A draft is submitted as new payments, each of which needs the id of its recipient.
    if not all(one["recipient"].get("id") for one in there):
        yield from release_batch_lock(batch)
        raise Invalid(PAYEE_UNKNOWN)
    entries = edit.in_draft(there, now)
    aliases = _aliases(batch, entries, edit.gone)
    yield from _drafted(batch, request, entries, aliases, (batch.upstream,), facts=edit.facts)


def _remade(batch: Batch, request: Request, edit_call: Call, edit: Edit) -> Sub:
    """POST /batches in another currency, with the added payments, for a batch without payments.

    No document shows how a service would change the currency of an existing batch, so the new batch
    supersedes it. ``edit_call`` maps field names to the client's.
    """
    # If this operation is given up, ``release_stale_lock`` keeps a batch created in this phase.
    yield Record("batch", batch.id, {"phase": "making"})
    entries = edit.in_draft((), format_timestamp(request.now))
    description = edit.facts.get("description", batch.description)
    currency, memo = str(edit.facts["currency"]), request.manners.send_memo
    body = build_batch_body(currency, description, entries, memo=memo)
    names = {"currency": "sourceCurrency", "description": "description"}
    call = Call(
        "POST",
        "/batches",
        body,
        sent_as=ChainMap(names, edit_call.sent_as),  # type: ignore[arg-type] # it is only read
        settle=settling.settle_created_batch(body),
        known_by=settling.select_batch_match_fields(body),
    )
    upstream = extract_batch((yield from call_under_lock(batch, call, convert_not_found)))["id"]
    facts = {**edit.facts, "phase": "sent", "upstream": upstream, "is_new": True}
    aliases = [*_aliases(batch, entries, ()), _renamed(batch.id, batch.facts, upstream)]
    yield from _drafted(batch, request, entries, aliases, (batch.upstream,), facts=facts)


def _aliases(batch: Batch, there: Sequence[Entry], gone: Sequence[JSON]) -> Sequence[Record]:
    """Build the redirects by which a payment is found by its id alone, or found to be deleted."""
    ids = chain_rows(
        map_rows(lambda entry: (entry["id"], False), there), map_rows(lambda id_: (id_, True), gone)
    )

    def alias(named: tuple[JSON, bool]) -> Record:
        id_, is_gone = named
        facts = {"gone": True} if is_gone else {"batch": batch.id, "gone": None}
        return Record("alias", str(id_), facts)

    return map_rows(alias, ids)


def _drafted(
    batch: Batch,
    request: Request,
    entries: Sequence[Entry],
    aliases: Sequence[Record],
    abandoned: Sequence[str] = (),
    *,
    facts: Mapping[str, JSON],
) -> Sub:
    facts = {
        **build_unlocked_facts(batch, "draft"),
        "upstream": None,
        "elsewhere": None,
        "abandoned": [*batch.facts.get("abandoned", []), *abandoned],
        "currency": batch.currency,
        "description": batch.description,
        "description_was": None,
        "createdAt": batch.given.get("createdAt") or batch.facts.get("createdAt"),
        "updatedAt": format_timestamp(request.now),
        **facts,
    }
    # By these records any later write to a superseded batch is refused, above all its start.
    left = [Record("alias", upstream, {"abandoned": True}) for upstream in abandoned]
    whole = build_batch_record(batch.id, facts, entries, aliases)
    yield replace(whole, also=(*whole.also, *left))


def build_unlocked_facts(batch: Batch, phase: str) -> dict[str, JSON]:
    """Build the facts that end a change and release the lock."""
    # The new version makes a request conflict that loaded the batch before the change.
    return {"phase": phase, "since": None, "version": (batch.facts.get("version") or 0) + 1}


def build_entries(batch: Batch) -> Sequence[Entry]:
    """Build an entry for every payment of a batch, including those created elsewhere."""
    return map_rows(_entry_of, batch.payments)


def _named_entries_of(batch: Batch, request: Request) -> Sequence[Entry]:
    """Build the entries of a new draft, with an id made by the gateway if the service shows none.

    ``told`` keeps the service's amounts that a draft no longer shows, because a client that has
    read them may send them back unchanged.
    """

    def named(entry: Entry, payment: Payment, place: int) -> Entry:
        untold = (name for name in AMOUNTS if name not in entry and payment.get(name))
        if told := {name: money.format_numeric_amount(payment[name]) for name in untold}:
            entry = {**entry, "told": told}
        return {
            **entry,
            "id": entry.get("id") or derive_id("P", request.seed, batch.id, f"kept {place}"),
        }

    entries = build_entries(batch)
    return map_rows(named, entries, batch.payments, range(len(entries)))


_KEPT = ("id", "upstream", "recipient", "sourceAmount", "memo", "createdAt", "updatedAt")


def _entry_of(payment: Payment) -> Entry:
    entry = {name: payment[name] for name in _KEPT if payment.get(name) is not None}
    if (method := payment.get("method")) and not entry["recipient"].get("payoutMethod"):
        entry["recipient"] = {**entry["recipient"], "payoutMethod": method}
    if payment.get("targetAmount") and not _follows_from_source(payment):
        entry |= {name: payment[name] for name in ("targetAmount", "targetCurrency")}
        entry.pop("sourceAmount", None)
    for name in ("sourceAmount", "targetAmount"):
        if name in entry:
            entry[name] = money.format_numeric_amount(entry[name])  # it will be sent as text
    return entry


def _follows_from_source(payment: Mapping[str, JSON]) -> bool:
    """Whether the service computed the target amount, because the source amount was requested."""
    asked = payment.get("asked_side") or ("source" if payment.get("sourceAmount") else "target")
    return bool(asked == "source")


def release_stale_lock(
    batch_id: str, facts: Mapping[str, JSON], happened: str | None, made: str | None
) -> Record | None:
    """Build the record that releases the lock of a change that is given up; None if there is none.

    ``executed_at`` is when the change's last write was executed, None if it was not; ``created_id``
    is the id of the batch that it created, if any.
    """
    phase = facts.get("phase")
    if is_unlocked(facts):
        return None
    left: dict[str, JSON] = {"phase": "sent" if facts.get("upstream") else "draft"}
    also: tuple[Record, ...] = ()
    if phase == "deleting" and happened:
        left = {"phase": "deleted"}
    elif phase == "starting" and happened:
        left |= {"started": happened}
    elif phase == "making" and made:
        left = {"phase": "sent", "upstream": made, "is_new": True}
        also = (_renamed(batch_id, facts, made),)
        if superseded := facts.get("upstream"):
            abandoned = [*facts.get("abandoned", []), superseded]
            # The new batch at the service has its own currency and description.
            left |= {"abandoned": abandoned, "currency": None, "description": None}
            also = (*also, Record("alias", superseded, {"abandoned": True}))
    freed = {**left, "since": None, ADDS: None, "version": (facts.get("version") or 0) + 1}
    return Record("batch", batch_id, freed, find=build_batch_condition(facts), also=also)


def _renamed(batch_id: str, facts: Mapping[str, JSON], made: str) -> Record:
    """Build the redirect from a batch's new id at the service to its first id."""
    return Record("alias", made, {"id": batch_id, "createdAt": facts.get("createdAt")})


def format_timestamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Submitting drafts


ROUNDS = 20
"""How often a request waits for another to finish before it is answered with a retry later."""


def submit_draft(batch: Batch, request: Request) -> Sub:
    """POST /batches for a draft, once, when a quote, a summary or the start needs it.

    Returns the submitted batch, which keeps its ids for clients; a batch that is not a draft is
    returned as it is. If another request is submitting it, this one waits and uses the result.
    """
    for _ in range(ROUNDS):
        if not batch.is_draft:
            return batch
        try:
            yield from taken(batch, "making", request.now)
        except Conflict:  # another request edits or submits the draft
            batch = yield from reload_batch(batch.id)
        else:
            return (yield from _made(batch, request))
    raise Halted(BEING_CHANGED, retry_after=1)


def _made(batch: Batch, request: Request) -> Sub:
    description = batch.facts.get("description")
    body = build_batch_body(
        str(batch.currency), description, batch.entries, memo=request.manners.send_memo
    )
    settle, known_by = settling.settle_created_batch(body), settling.select_batch_match_fields(body)
    call = Call("POST", "/batches", body, settle=settle, known_by=known_by)
    made = extract_batch((yield from call_under_lock(batch, call, partial(_naming, batch.entries))))
    upstream = made["id"]
    facts = {**build_unlocked_facts(batch, "sent"), "upstream": upstream, "is_new": True}
    renamed = _renamed(batch.id, batch.facts, upstream)
    yield Record("batch", batch.id, facts, also=(renamed,))
    # Not the stored state, which an edit may have changed already. A caller that then acquires the
    # lock conflicts with that edit.
    return (yield from load_batch_with_facts(batch, facts))


_PAYMENT = re.compile(r"payments[.\[](\d+)")


def _naming(entries: Sequence[Entry], refused: Refused) -> Refused:
    """Prefix the problems of a refused draft with the payment's id.

    The request that submits a draft has no payments, so a field of it could not name one.
    """

    def told(problem: Problem) -> Problem:
        place = _PAYMENT.match(problem.field or "")
        if place is None or int(place[1]) >= len(entries):
            return problem
        return replace(problem, message=f"{entries[int(place[1])]['id']}: {problem.message}")

    refused = convert_not_found(refused)
    return Refused(refused.status, [*map(told, refused.problems)], retry_after=refused.retry_after)
