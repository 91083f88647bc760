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

from mappings import money, outcome_rules
from mappings.batch_bodies import AMOUNT_FIELDS, apply_changes, build_batch_body
from mappings.batch_reads import WRONG_STATUS, load_batch, load_batch_with_facts
from mappings.batch_views import Batch, build_batch_record
from mappings.effects import (
    JSON,
    AwaitFacts,
    Call,
    CompareAndSet,
    Conflict,
    Failure,
    Halted,
    Invalid,
    LoadFacts,
    NoSuchOperation,
    Problem,
    Refused,
    Request,
    Step,
    Unknown,
    Unreachable,
)
from mappings.errors import (
    NOT_FOUND,
    OTHER_IN_DOUBT,
    convert_not_found,
    convert_not_found_in_fields,
)
from mappings.ids import derive_id
from mappings.lazy_sequences import chain_rows, filter_rows, map_rows
from mappings.matching import Entry, Payment
from mappings.payloads import extract_batch
from mappings.payouts import SubFlow

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


def change_batch(
    request: Request,
    change: Callable[[Batch], SubFlow],
    is_open: Callable[[Mapping[str, JSON]], bool] | None = None,
) -> SubFlow:
    """Run ``change``, an edit that acquires the lock, on the batch, and return its result.

    ``is_open`` says of the batch's facts whether this edit may acquire the lock.

    The first attempt loads the batch without a lock, which is enough if no other edit is under way.
    If it conflicts, the second attempt acquires the lock first: clients add payments to one batch
    by many requests at a time, and each must load the batch only once.
    """
    id_ = request.ids["id"]
    signed_changes = yield LoadFacts(SIGNED_CHANGES_KIND, id_)
    batch: Batch = yield from load_batch(id_)
    now = request.now
    # State is stored under the first id: signed changes of another id are not those of the batch.
    if (
        batch.id == id_
        and has_no_active_signed_change(now, signed_changes)
        and has_no_lost_signed_change(now, signed_changes)
    ):
        try:
            return (yield from change(replace(batch, signed_changes=signed_changes)))
        except Conflict:
            pass
    locked_batch = yield from _acquire_lock_before_load(batch.id, request, is_open or is_unlocked)
    try:
        return (yield from change(locked_batch))
    except Failure:
        yield from _release_lock_if_held(locked_batch)
        raise


MAX_LOCK_WAITS = 1000
"""How many edits by other requests one waits for: more than can be under way at a time."""


def _acquire_lock_before_load(
    batch_id: str, request: Request, is_open: Callable[[Mapping[str, JSON]], bool]
) -> SubFlow:
    """Acquire the lock for an edit, then load the batch: a waiting request loads it only once."""
    # The value identifies the lock when it is released, so it is unique even with a coarse clock.
    since = f"{request.now.isoformat()} {request.seed}"
    for _ in range(MAX_LOCK_WAITS):
        try:
            # A lost signed change may still add a payment, which the summary does not show yet.
            yield AwaitFacts(
                SIGNED_CHANGES_KIND,
                batch_id,
                condition=partial(has_no_lost_signed_change, request.now),
            )
            facts = yield AwaitFacts("batch", batch_id, condition=is_open)
        except Conflict:
            break
        if facts.get("phase") == "deleted":
            raise Invalid(NOT_FOUND)
        # A batch created elsewhere has no facts if a start of it was refused meanwhile.
        lock_facts = ({} if facts else build_external_batch_facts(batch_id)) | {
            "phase": "editing",
            "since": since,
        }
        try:
            yield CompareAndSet(
                "batch", batch_id, lock_facts, expected=build_batch_condition(facts)
            )
        except Conflict:
            continue
        facts_before = {name: facts.get(name) for name in lock_facts}
        try:
            # While the batch is locked no signed change starts, so this wait ends.
            signed_changes = yield AwaitFacts(
                SIGNED_CHANGES_KIND,
                batch_id,
                condition=partial(has_no_active_signed_change, request.now),
            )
        except Conflict:
            yield CompareAndSet("batch", batch_id, facts_before)
            break
        # One of them was lost meanwhile: unlock, and wait until it can no longer be executed.
        if not has_no_lost_signed_change(request.now, signed_changes):
            yield CompareAndSet("batch", batch_id, facts_before)
            continue
        try:
            batch: Batch = yield from load_batch(batch_id)
        except Failure:
            yield CompareAndSet("batch", batch_id, facts_before)
            raise
        return replace(batch, has_lock=True)
    raise Halted(BEING_CHANGED, retry_after=1)


def finish_without_change(batch: Batch) -> SubFlow:
    """Finish an edit that changes nothing, and release the lock if it was acquired."""
    if batch.has_lock:
        yield from _release_lock_if_held(batch)


def _release_lock_if_held(batch: Batch) -> SubFlow:
    """Release a lock acquired before the batch was loaded, unless it is released already."""
    try:
        yield CompareAndSet(
            "batch",
            batch.id,
            _build_released_facts(batch),
            expected=build_batch_condition(batch.facts),
        )
    except Conflict:
        return


SIGNED_CHANGES_KIND = "signed"
"""The kind under which changes of a batch with a client's own signature are stored.

Each that is under way has a name of its own, with the time it began as its value; ``last`` is the
name of the last to begin, and ``lost`` when one was last found to have no response, so that it may
still be executed. With a name for each, changes that begin and end at the same time do not
conflict."""

SIGNED_CHANGE_TTL_SECONDS = 90
"""After which a signed change without a known end has ended: the service accepts a timestamp that
is up to 30 seconds ahead, and for 30 seconds from then; the rest is a margin."""

_LAST_KEY, _LOST_KEY = "last", "lost"


def list_active_signed_changes(signed_changes: Mapping[str, JSON], now: datetime) -> list[str]:
    """Return the names of a batch's signed changes that are under way."""
    names = signed_changes.keys() - {_LAST_KEY, _LOST_KEY}
    return [name for name in names if _is_unexpired(signed_changes[name], now)]


def has_no_active_signed_change(now: datetime, signed_changes: Mapping[str, JSON]) -> bool:
    return not list_active_signed_changes(signed_changes, now)


def has_no_lost_signed_change(now: datetime, signed_changes: Mapping[str, JSON]) -> bool:
    """Whether no signed change without a response may still be executed."""
    return not (signed_changes.get(_LOST_KEY) and _is_unexpired(signed_changes[_LOST_KEY], now))


def _is_unexpired(since: JSON, now: datetime) -> bool:
    return (now - datetime.fromisoformat(str(since))).total_seconds() < SIGNED_CHANGE_TTL_SECONDS


def add_signed_change(
    signed_changes: Mapping[str, JSON], name: str, now: datetime
) -> dict[str, JSON]:
    """Build the facts that add a signed change and remove expired ones."""
    expired_names = signed_changes.keys() - {
        _LAST_KEY,
        _LOST_KEY,
        *list_active_signed_changes(signed_changes, now),
    }
    return {**dict.fromkeys(expired_names), name: now.isoformat(), _LAST_KEY: name}


def remove_signed_change(name: str, lost_at: datetime | None = None) -> dict[str, JSON]:
    """Build the facts that remove a signed change, and record when it was lost if so."""
    return {name: None} if lost_at is None else {name: None, _LOST_KEY: lost_at.isoformat()}


def build_signed_condition(signed_changes: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build the condition that no signed change has begun since these facts were loaded."""
    return {_LAST_KEY: signed_changes.get(_LAST_KEY)}


def _build_signed_guard(batch_id: str, signed_changes: Mapping[str, JSON]) -> CompareAndSet:
    return CompareAndSet(
        SIGNED_CHANGES_KIND, batch_id, {}, expected=build_signed_condition(signed_changes)
    )


def reload_batch(batch_id: str) -> SubFlow:
    """Wait until no change is under way, and load the batch. Raises Halted if it takes too long."""
    try:
        yield AwaitFacts("batch", batch_id, condition=is_unlocked)
    except Conflict:
        # Not a definite refusal: the conflict is with the client's own other requests.
        raise Halted(BEING_CHANGED, retry_after=1) from None
    return (yield from load_batch(batch_id))


def wait_for_batch_lock(batch: Batch, phase: str, now: datetime) -> SubFlow:
    """Acquire the lock, waiting for others, and return the batch as it was at that moment."""
    for _ in range(MAX_LOCK_ATTEMPTS):
        try:
            yield from acquire_batch_lock(batch, phase, now)
        except Conflict:
            batch = yield from reload_batch(batch.id)
        else:
            return batch
    raise Halted(BEING_CHANGED, retry_after=1)


def acquire_batch_lock(
    batch: Batch, phase: str, now: datetime, guards: Sequence[CompareAndSet] = ()
) -> SubFlow:
    """Acquire the batch's lock. Raises Conflict if the batch changed since it was loaded.

    ``guards`` are further conditions, checked in the same transaction.
    """
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    if batch.has_lock:
        return
    if not is_unlocked(batch.facts):
        raise Conflict("batch")
    yield _taking(batch, {"phase": phase, "since": now.isoformat()}, guards)


def _taking(
    batch: Batch, facts: dict[str, JSON], also: Sequence[CompareAndSet] = ()
) -> CompareAndSet:
    if not batch.facts:
        facts |= {**build_external_batch_facts(batch.id), "currency": batch.currency}
        facts |= {name: batch.service_fields.get(name) for name in ("description", "createdAt")}
    return CompareAndSet(
        "batch", batch.id, facts, expected=build_batch_condition(batch.facts), linked=also
    )


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
        facts = yield LoadFacts("batch", self.batch.id)
        adds = facts.get(ADDS) or {}
        return [body for name, body in adds.items() if name != self.name]

    @property
    def in_doubt(self) -> CompareAndSet:
        """Gives the batch back to other adds, while the outcome of this one is unknown."""
        facts = build_unlocked_facts(self.batch, "sent")
        find = {"phase": "editing", "since": self.since}
        return CompareAndSet("batch", self.batch.id, facts, expected=find)


def begin_add(batch: Batch, request: Request, body: Mapping[str, JSON]) -> SubFlow:
    """Takes the batch to add a payment; Conflict if another change has or had it."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    adds = batch.facts.get(ADDS) or {}
    if body in adds.values():
        raise Halted(OTHER_IN_DOUBT, retry_after=1)
    if not (batch.has_lock or is_open_to_adds(batch.facts)):
        raise Conflict("batch")
    named = {ADDS: {**adds, request.seed: body}}
    if batch.has_lock:
        yield CompareAndSet("batch", batch.id, named)
        return Add(batch, request.seed, body, str(batch.facts.get("since")))
    since = f"{request.now.isoformat()} {request.seed}"
    yield _taking(batch, {"phase": "editing", "since": since, **named})
    return Add(batch, request.seed, body, since)


def confirm_add(add: Add, entry: Entry) -> SubFlow:
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


def drop_add(add: Add) -> SubFlow:
    """Gives the batch back without a payment that was not added."""
    facts, _ = yield from _hold(add)
    left = {name: body for name, body in facts.get(ADDS, {}).items() if name != add.name}
    after = _after_add(facts, left)
    if facts.get("since") == add.since:  # nobody has found anything of it
        del after["version"]
    yield CompareAndSet("batch", add.batch.id, after)


def _ids_of(entry: Entry) -> tuple[JSON, JSON]:
    return entry.get("id"), entry.get("upstream")


def _after_add(
    facts: Mapping[str, JSON], left: Mapping[str, Mapping[str, JSON]]
) -> dict[str, JSON]:
    """The facts with which an add is over; of those that are added nobody asks once none is in doubt."""
    is_open = any(not body.get(_IS_ADDED) for body in left.values())
    version = (facts.get("version") or 0) + 1
    return {"phase": "sent", "since": None, "version": version, ADDS: left if is_open else None}


def _hold(add: Add) -> SubFlow:
    """The batch's facts and entries, taken again if it was given back while the add was in doubt."""
    facts = yield LoadFacts("batch", add.batch.id)
    if facts.get("since") == add.since:
        return facts, build_entries(add.batch)
    for _ in range(MAX_LOCK_WAITS):
        facts = yield AwaitFacts("batch", add.batch.id, condition=is_open_to_adds)
        again = {"phase": "editing", "since": f"{add.since} again"}
        try:
            yield CompareAndSet("batch", add.batch.id, again, expected=build_batch_condition(facts))
        except Conflict:
            continue
        return facts, (yield LoadFacts("payments", add.batch.id)).get("entries", [])
    raise Unknown("other changes of the batch are under way")


def build_external_batch_facts(upstream_id: str) -> dict[str, JSON]:
    """Build the facts to store for a batch created elsewhere, when it is first locked."""
    # A batch with facts and without an upstream id would be a draft.
    return {"upstream": upstream_id, "version": 0, "elsewhere": True}


def build_batch_condition(facts: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build the condition that no request has locked or changed the batch since it was loaded."""
    return {name: facts.get(name) for name in ("phase", "version", "since")}


def is_unlocked(facts: Mapping[str, JSON]) -> bool:
    """Whether no change of the batch is under way."""
    return facts.get("phase") in _UNLOCKED and not facts.get(ADDS)


_UNLOCKED = (None, "sent", "draft", "deleted")


def call_under_lock(
    batch: Batch,
    call: Call,
    convert_refusal: Callable[[Refused], Refused] = lambda refusal: refusal,
) -> SubFlow:
    """Make the call the batch was locked for; release the lock if it certainly had no effect.

    A write without a response (``Unknown``) keeps the lock: it may have been executed.
    """
    try:
        return (yield call)
    except Refused as original_refusal:
        yield from release_batch_lock(batch)
        raise convert_refusal(original_refusal) from None
    except Unreachable:
        yield from release_batch_lock(batch)
        raise
    except Conflict:  # the upstream batch was superseded meanwhile
        yield from release_batch_lock(batch)
        raise Halted(BEING_CHANGED, retry_after=1) from None


def release_batch_lock(batch: Batch) -> SubFlow:
    yield CompareAndSet("batch", batch.id, _build_released_facts(batch))


def _build_released_facts(batch: Batch) -> dict[str, JSON]:
    return {"phase": "draft" if batch.is_draft else "sent", "since": None}


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of a batch's entries, and of the batch itself.

    ``added_entries`` have ids made by the gateway; ``removed_ids`` and the keys of
    ``build_changes()`` are ids of entries. The changes are built on demand: by then the request's
    body is freed. ``facts`` are the new ``description`` and ``currency``, the latter only of a
    batch without payments.
    """

    added_entries: Sequence[Entry] = ()
    build_changes: Callable[[], Mapping[str, Mapping[str, JSON]]] = dict
    removed_ids: Sequence[JSON] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def has_payment_changes(self) -> bool:
        return bool(self.added_entries or self.removed_ids or self.build_changes())

    def build_entries_after_call(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Build the entries after the service has made the edit.

        Added entries have no id: the service gives them one, which the next summary shows.
        """
        return chain_rows(self._apply_changes(entries), map_rows(_drop_id, self.added_entries))

    def build_draft_entries(self, entries: Sequence[Entry], now: str) -> Sequence[Entry]:
        """Build the entries of a draft after the edit, with the times a service would set."""
        return chain_rows(
            self._apply_changes(entries, now),
            map_rows(partial(_set_timestamps, now), self.added_entries),
        )

    def _apply_changes(self, entries: Sequence[Entry], now: str | None = None) -> Sequence[Entry]:
        removed_ids = frozenset(self.removed_ids)
        rest = (
            filter_rows(entries, lambda entry: entry.get("id") not in removed_ids)
            if removed_ids
            else entries
        )
        changes = self.build_changes()
        return map_rows(partial(_change_entry, changes, now), rest) if changes else rest


def _change_entry(
    changes: Mapping[str, Mapping[str, JSON]], now: str | None, entry: Entry
) -> Entry:
    body = changes.get(entry.get("id", ""))
    updated = entry if body is None else apply_changes(entry, body)
    return updated if now is None or updated == entry else {**updated, "updatedAt": now}


def _drop_id(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "id"}


def _set_timestamps(now: str, entry: Entry) -> Entry:
    return {"createdAt": now, **entry, "updatedAt": now}


def edit_batch(batch: Batch, request: Request, call: Call, edit: Edit) -> SubFlow:
    """Make an edit with the inferred ``call``, or in a draft if the service has no such operation.

    The first edit of the second kind turns the batch into a draft and supersedes the service's
    batch, which is never started through the gateway from then on.
    """
    yield from acquire_batch_lock(
        batch, "editing", request.now, (_build_signed_guard(batch.id, batch.signed_changes),)
    )
    now = format_timestamp(request.now)
    if "currency" in edit.facts and not batch.is_draft:
        yield from _recreate_in_currency(batch, request, call, edit)
        return
    if batch.is_draft:
        entries = edit.build_draft_entries(batch.entries, now)
        redirects = _build_payment_redirects(batch, edit.added_entries, edit.removed_ids)
        yield from _record_draft(batch, request, entries, redirects, facts=edit.facts)
        return
    try:
        yield from call_under_lock(batch, call, convert_not_found_in_fields)
    except NoSuchOperation:
        pass
    else:
        facts = {**build_unlocked_facts(batch, "sent"), **edit.facts}
        facts |= {"description_was": None} if edit.facts else {}
        yield build_batch_record(
            batch.id, facts, edit.build_entries_after_call(build_entries(batch))
        )
        return
    if not edit.has_payment_changes:
        # A description changes nothing that is paid, so the service's batch need not be superseded.
        service_text = batch.service_fields.get(
            "description_told", batch.service_fields.get("description")
        )
        facts = {
            **build_unlocked_facts(batch, "sent"),
            **edit.facts,
            "description_was": service_text or "",
        }
        yield CompareAndSet("batch", batch.id, {**facts, "updatedAt": now})
        return
    if batch.currency is None:
        # Such a draft could never be submitted.
        yield from release_batch_lock(batch)
        raise Invalid(CURRENCY_UNKNOWN)
    entries_before = _build_entries_with_ids(batch, request)
    # A draft is submitted as new payments, each of which needs the id of its recipient.
    if not all(entry["recipient"].get("id") for entry in entries_before):
        yield from release_batch_lock(batch)
        raise Invalid(PAYEE_UNKNOWN)
    entries = edit.build_draft_entries(entries_before, now)
    redirects = _build_payment_redirects(batch, entries, edit.removed_ids)
    yield from _record_draft(
        batch, request, entries, redirects, (batch.upstream_id,), facts=edit.facts
    )


def _recreate_in_currency(batch: Batch, request: Request, edit_call: Call, edit: Edit) -> SubFlow:
    """POST /batches in another currency, with the added payments, for a batch without payments.

    No document shows how a service would change the currency of an existing batch, so the new batch
    supersedes it. ``edit_call`` maps field names to the client's.
    """
    # If this operation is given up, ``release_stale_lock`` keeps a batch created in this phase.
    yield CompareAndSet("batch", batch.id, {"phase": "making"})
    entries = edit.build_draft_entries((), format_timestamp(request.now))
    description = edit.facts.get("description", batch.description)
    currency, memo = str(edit.facts["currency"]), request.options.send_memo
    body = build_batch_body(currency, description, entries, memo=memo)
    field_names = {"currency": "sourceCurrency", "description": "description"}
    call = Call(
        "POST",
        "/batches",
        body,
        field_map=ChainMap(field_names, edit_call.field_map),  # type: ignore[arg-type] # it is only read
        reconcile=outcome_rules.build_created_batch_rule(body),
        match_fields=outcome_rules.select_batch_match_fields(body),
    )
    upstream_id = extract_batch((yield from call_under_lock(batch, call, convert_not_found)))["id"]
    facts = {**edit.facts, "phase": "sent", "upstream": upstream_id, "is_new": True}
    redirects = [
        *_build_payment_redirects(batch, entries, ()),
        _build_batch_redirect(batch.id, batch.facts, upstream_id),
    ]
    yield from _record_draft(batch, request, entries, redirects, (batch.upstream_id,), facts=facts)


def _build_payment_redirects(
    batch: Batch, entries: Sequence[Entry], removed_ids: Sequence[JSON]
) -> Sequence[CompareAndSet]:
    """Build the redirects by which a payment is found by its id alone, or found to be deleted."""
    ids = chain_rows(
        map_rows(lambda entry: (entry["id"], False), entries),
        map_rows(lambda id_: (id_, True), removed_ids),
    )

    def build_redirect(id_and_removal: tuple[JSON, bool]) -> CompareAndSet:
        id_, is_removed = id_and_removal
        facts = {"gone": True} if is_removed else {"batch": batch.id, "gone": None}
        return CompareAndSet("alias", str(id_), facts)

    return map_rows(build_redirect, ids)


def _record_draft(
    batch: Batch,
    request: Request,
    entries: Sequence[Entry],
    payment_redirects: Sequence[CompareAndSet],
    superseded_ids: Sequence[str] = (),
    *,
    facts: Mapping[str, JSON],
) -> SubFlow:
    facts = {
        **build_unlocked_facts(batch, "draft"),
        "upstream": None,
        "elsewhere": None,
        "abandoned": [*batch.facts.get("abandoned", []), *superseded_ids],
        "currency": batch.currency,
        "description": batch.description,
        "description_was": None,
        "createdAt": batch.service_fields.get("createdAt") or batch.facts.get("createdAt"),
        "updatedAt": format_timestamp(request.now),
        **facts,
    }
    # By these records any later write to a superseded batch is refused, above all its start.
    batch_redirects = [
        CompareAndSet("alias", upstream, {"abandoned": True}) for upstream in superseded_ids
    ]
    batch_record = build_batch_record(batch.id, facts, entries, payment_redirects)
    yield replace(batch_record, linked=(*batch_record.linked, *batch_redirects))


def build_unlocked_facts(batch: Batch, phase: str) -> dict[str, JSON]:
    """Build the facts that end a change and release the lock."""
    # The new version makes a request conflict that loaded the batch before the change.
    return {"phase": phase, "since": None, "version": (batch.facts.get("version") or 0) + 1}


def build_entries(batch: Batch) -> Sequence[Entry]:
    """Build an entry for every payment of a batch, including those created elsewhere."""
    return map_rows(_build_payment_entry, batch.payments)


def _build_entries_with_ids(batch: Batch, request: Request) -> Sequence[Entry]:
    """Build the entries of a new draft, with an id made by the gateway if the service shows none.

    ``told`` keeps the service's amounts that a draft no longer shows, because a client that has
    read them may send them back unchanged.
    """

    def add_id(entry: Entry, payment: Payment, position: int) -> Entry:
        names = (name for name in AMOUNT_FIELDS if name not in entry and payment.get(name))
        if amounts := {name: money.format_numeric_amount(payment[name]) for name in names}:
            entry = {**entry, "told": amounts}
        return {
            **entry,
            "id": entry.get("id") or derive_id("P", request.seed, batch.id, f"kept {position}"),
        }

    entries = build_entries(batch)
    return map_rows(add_id, entries, batch.payments, range(len(entries)))


_ENTRY_FIELDS = ("id", "upstream", "recipient", "sourceAmount", "memo", "createdAt", "updatedAt")


def _build_payment_entry(payment: Payment) -> Entry:
    entry = {name: payment[name] for name in _ENTRY_FIELDS if payment.get(name) is not None}
    if (method := payment.get("method")) and not entry["recipient"].get("payoutMethod"):
        entry["recipient"] = {**entry["recipient"], "payoutMethod": method}
    if payment.get("targetAmount") and not _is_computed_target(payment):
        entry |= {name: payment[name] for name in ("targetAmount", "targetCurrency")}
        entry.pop("sourceAmount", None)
    for name in ("sourceAmount", "targetAmount"):
        if name in entry:
            entry[name] = money.format_numeric_amount(entry[name])  # it will be sent as text
    return entry


def _is_computed_target(payment: Mapping[str, JSON]) -> bool:
    """Whether the service computed the target amount, because the source amount was requested."""
    side = payment.get("asked_side") or ("source" if payment.get("sourceAmount") else "target")
    return bool(side == "source")


def release_stale_lock(
    batch_id: str, facts: Mapping[str, JSON], executed_at: str | None, created_id: str | None
) -> CompareAndSet | None:
    """Build the record that releases the lock of a change that is given up; None if there is none.

    ``executed_at`` is when the change's last write was executed, None if it was not; ``created_id``
    is the id of the batch that it created, if any.
    """
    phase = facts.get("phase")
    if is_unlocked(facts):
        return None
    released_facts: dict[str, JSON] = {"phase": "sent" if facts.get("upstream") else "draft"}
    also: tuple[CompareAndSet, ...] = ()
    if phase == "deleting" and executed_at:
        released_facts = {"phase": "deleted"}
    elif phase == "starting" and executed_at:
        released_facts |= {"started": executed_at}
    elif phase == "making" and created_id:
        released_facts = {"phase": "sent", "upstream": created_id, "is_new": True}
        also = (_build_batch_redirect(batch_id, facts, created_id),)
        if superseded_id := facts.get("upstream"):
            superseded_ids = [*facts.get("abandoned", []), superseded_id]
            # The new batch at the service has its own currency and description.
            released_facts |= {"abandoned": superseded_ids, "currency": None, "description": None}
            also = (*also, CompareAndSet("alias", superseded_id, {"abandoned": True}))
    new_facts = {
        **released_facts,
        "since": None,
        ADDS: None,
        "version": (facts.get("version") or 0) + 1,
    }
    return CompareAndSet(
        "batch", batch_id, new_facts, expected=build_batch_condition(facts), linked=also
    )


def _build_batch_redirect(
    batch_id: str, facts: Mapping[str, JSON], upstream_id: str
) -> CompareAndSet:
    """Build the redirect from a batch's new id at the service to its first id."""
    return CompareAndSet(
        "alias", upstream_id, {"id": batch_id, "createdAt": facts.get("createdAt")}
    )


def format_timestamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Submitting drafts


MAX_LOCK_ATTEMPTS = 20
"""How often a request waits for another to finish before it is answered with a retry later."""


def submit_draft(batch: Batch, request: Request) -> SubFlow:
    """POST /batches for a draft, once, when a quote, a summary or the start needs it.

    Returns the submitted batch, which keeps its ids for clients; a batch that is not a draft is
    returned as it is. If another request is submitting it, this one waits and uses the result.
    """
    for _ in range(MAX_LOCK_ATTEMPTS):
        if not batch.is_draft:
            return batch
        try:
            yield from acquire_batch_lock(batch, "making", request.now)
        except Conflict:  # another request edits or submits the draft
            batch = yield from reload_batch(batch.id)
        else:
            return (yield from _create_upstream_batch(batch, request))
    raise Halted(BEING_CHANGED, retry_after=1)


def _create_upstream_batch(batch: Batch, request: Request) -> SubFlow:
    description = batch.facts.get("description")
    body = build_batch_body(
        str(batch.currency), description, batch.entries, memo=request.options.send_memo
    )
    outcome_rule, match_fields = (
        outcome_rules.build_created_batch_rule(body),
        outcome_rules.select_batch_match_fields(body),
    )
    call = Call("POST", "/batches", body, reconcile=outcome_rule, match_fields=match_fields)
    created = extract_batch(
        (yield from call_under_lock(batch, call, partial(_name_refused_payments, batch.entries)))
    )
    upstream_id = created["id"]
    facts = {**build_unlocked_facts(batch, "sent"), "upstream": upstream_id, "is_new": True}
    redirect = _build_batch_redirect(batch.id, batch.facts, upstream_id)
    yield CompareAndSet("batch", batch.id, facts, linked=(redirect,))
    # Not the stored state, which an edit may have changed already. A caller that then acquires the
    # lock conflicts with that edit.
    return (yield from load_batch_with_facts(batch, facts))


_PAYMENT_FIELD_PATTERN = re.compile(r"payments[.\[](\d+)")


def _name_refused_payments(entries: Sequence[Entry], refusal: Refused) -> Refused:
    """Prefix the problems of a refused draft with the payment's id.

    The request that submits a draft has no payments, so a field of it could not name one.
    """

    def add_payment_id(problem: Problem) -> Problem:
        match = _PAYMENT_FIELD_PATTERN.match(problem.field or "")
        if match is None or int(match[1]) >= len(entries):
            return problem
        return replace(problem, message=f"{entries[int(match[1])]['id']}: {problem.message}")

    refusal = convert_not_found(refusal)
    return Refused(
        refusal.status, [*map(add_payment_id, refusal.problems)], retry_after=refusal.retry_after
    )
