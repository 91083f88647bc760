"""Locks of batches, for writes that must not overlap.

If an edit and a start of one batch run at the same time, only one may win; otherwise a client pays
what it has just removed. Each acquires the batch's lock: it sets the fact ``phase`` on condition
that the facts are unchanged since it loaded them. A request that finds the lock taken waits and
loads the batch again; it is never refused for good because of another request. An edit also waits
for changes that clients have sent with their own signature, because a payment that such a change
adds may be missing from the summary, and a draft made from that would lose it. In addition, the
transaction that records an upstream write rejects one that names a superseded batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import structs

from mappings.batch_reads import WRONG_STATUS, load_batch
from mappings.batch_views import SIGNED_ADDS, Batch
from mappings.effects import JSON, AwaitFacts, Call, CompareAndSet, LoadFacts, Request, SubFlow
from mappings.errors import NOT_FOUND
from mappings.failures import Conflict, Failure, Halted, Invalid, Problem, Refused, Unreachable

BEING_CHANGED = Problem(
    "internal_server_error",
    "Another change of this batch is under way; nothing was done. Try again later.",
)


def change_batch(
    request: Request,
    change: Callable[[Batch], SubFlow],
    *,
    payment_ids: Collection[str] | None = None,
    is_add: bool = False,
) -> SubFlow:
    """Runs ``change``, an edit that acquires the lock, on the batch, and returns its result.

    Of a draft it needs the payments in ``payment_ids`` only, if these are given. An edit that only
    adds a payment (``is_add``) waits neither for other adds that are in doubt nor for signed
    changes: its outcome rule tells their payments apart.

    The first attempt loads the batch without a lock, which is enough if no other edit is under way.
    If it conflicts, the second attempt acquires the lock first: clients add payments to one batch
    by many requests at a time, and each must load the batch only once.
    """
    id_ = request.ids["id"]
    signed_changes = yield LoadFacts(SIGNED_ADDS if is_add else SIGNED_CHANGES_KIND, id_)
    batch: Batch = yield from load_batch(id_, payment_ids)
    # State is stored under the first id: signed changes of another id are not those of the batch.
    if batch.id == id_ and (is_add or has_no_open_signed_change(signed_changes)):
        try:
            return (yield from change(structs.replace(batch, signed_changes=signed_changes)))
        except Conflict:
            pass
    locked_batch = yield from _load_batch_under_lock(
        batch.id, request, payment_ids=payment_ids, is_add=is_add
    )
    try:
        return (yield from change(locked_batch))
    except Failure:
        yield from release_lock_if_held(locked_batch)
        raise


MAX_LOCK_WAITS = 1000
"""Maximum number of other requests' edits that a request waits for; fewer can run at a time."""


def _load_batch_under_lock(
    batch_id: str, request: Request, *, payment_ids: Collection[str] | None, is_add: bool
) -> SubFlow:
    """Acquires the lock for an edit, then loads the batch: a waiting request loads it only once."""
    # The value identifies the lock when it is released, so it is unique even with a coarse clock.
    since = f"{request.now.isoformat()} {request.seed}"
    for _ in range(MAX_LOCK_WAITS):
        condition = is_open_to_adds if is_add else is_batch_unlocked
        try:
            facts = yield AwaitFacts("batch", batch_id, condition=condition)
        except Conflict:
            break
        if facts.get("phase") == "deleted":
            raise Invalid(NOT_FOUND)
        # A batch created elsewhere has no facts if a start of it was refused meanwhile.
        lock_facts = {} if facts else build_external_batch_facts(batch_id)
        lock_facts |= {"phase": "editing", "since": since}
        is_unchanged = build_unchanged_batch_condition(facts)
        try:
            yield CompareAndSet("batch", batch_id, lock_facts, expected=is_unchanged)
        except Conflict:
            continue
        facts_before = {name: facts.get(name) for name in lock_facts}
        try:
            # No signed change begins while the batch is locked, so this wait ends.
            signed_changes = yield (
                LoadFacts(SIGNED_ADDS, batch_id)
                if is_add
                else AwaitFacts(SIGNED_CHANGES_KIND, batch_id, condition=has_no_open_signed_change)
            )
        except Conflict:
            yield CompareAndSet("batch", batch_id, facts_before)
            break
        try:
            batch: Batch = yield from load_batch(batch_id, payment_ids)
        except Failure:
            yield CompareAndSet("batch", batch_id, facts_before)
            raise
        return structs.replace(batch, has_lock=True, signed_changes=signed_changes)
    raise Halted(BEING_CHANGED, retry_after=1)


def finish_without_change(batch: Batch) -> SubFlow:
    """Finishes an edit that changes nothing, and releases the lock if it was acquired."""
    if batch.has_lock:
        yield from release_lock_if_held(batch)


def release_lock_if_held(batch: Batch) -> SubFlow:
    """Releases a lock acquired before the batch was loaded, unless it is released already."""
    is_unchanged = build_unchanged_batch_condition(batch.facts)
    with suppress(Conflict):
        yield CompareAndSet("batch", batch.id, build_released_facts(batch), expected=is_unchanged)


SIGNED_CHANGES_KIND = "signed"
"""The kind under which the changes of a batch with a client's own signature are stored.

Each change that is under way or in doubt has its own name, with the payment that it adds or an
empty object as the value, so that changes at the same time do not conflict. ``last`` is the name of
the last to begin."""

_LAST_KEY = "last"


def list_open_signed_changes(signed_changes: Mapping[str, JSON]) -> list[JSON]:
    """Returns the payments that a batch's open signed changes add, or empty objects."""
    return [value for name, value in signed_changes.items() if name != _LAST_KEY]


def has_no_open_signed_change(signed_changes: Mapping[str, JSON]) -> bool:
    return not list_open_signed_changes(signed_changes)


def build_signed_change_facts(name: str, payment: JSON) -> dict[str, JSON]:
    """Builds the facts that register a signed change."""
    return {name: payment or {}, _LAST_KEY: name}


def build_no_new_signed_change_guards(batch: Batch) -> Sequence[CompareAndSet]:
    """Builds the check that no signed change has begun since the batch was loaded.

    A draft needs none: the service does not have it.
    """
    if batch.is_draft:
        return ()
    expected = {_LAST_KEY: batch.signed_changes.get(_LAST_KEY)}
    return (CompareAndSet(SIGNED_CHANGES_KIND, batch.id, {}, expected=expected),)


def load_batch_once_unlocked(batch_id: str) -> SubFlow:
    """Loads the batch once no change is under way; raises Halted after a long wait."""
    try:
        yield AwaitFacts("batch", batch_id, condition=is_batch_unlocked)
    except Conflict:
        # The client may retry: the conflict is with its own other requests, which will end.
        raise Halted(BEING_CHANGED, retry_after=1) from None
    return (yield from load_batch(batch_id))


def retry_on_conflict(batch: Batch, attempt: Callable[[Batch], SubFlow]) -> SubFlow:
    """Makes an attempt, which raises Conflict if the batch was changed since it was loaded.

    After that it waits for the other request, and tries again with the batch as that has left it.
    """
    for _ in range(MAX_LOCK_ATTEMPTS):
        try:
            return (yield from attempt(batch))
        except Conflict:
            batch = yield from load_batch_once_unlocked(batch.id)
    raise Halted(BEING_CHANGED, retry_after=1)


def acquire_batch_lock(
    batch: Batch, phase: str, now: datetime, guards: Sequence[CompareAndSet] = ()
) -> SubFlow:
    """Acquires the batch's lock, and returns it. Raises Conflict if it changed since it was loaded.

    ``guards`` are further conditions, checked in the same transaction.
    """
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    if not batch.has_lock:
        if not is_batch_unlocked(batch.facts):
            raise Conflict("batch")
        lock_facts = {"phase": phase, "since": now.isoformat()}
        yield build_batch_lock_acquisition(batch, lock_facts, guards)
    return batch


def build_batch_lock_acquisition(
    batch: Batch, facts: dict[str, JSON], also: Sequence[CompareAndSet] = ()
) -> CompareAndSet:
    if not batch.facts:
        facts |= {**build_external_batch_facts(batch.id), "currency": batch.currency}
        facts |= {name: batch.service_fields.get(name) for name in ("description", "createdAt")}
    is_unchanged = build_unchanged_batch_condition(batch.facts)
    return CompareAndSet("batch", batch.id, facts, expected=is_unchanged, linked=also)


ADDS = "adds"
"""Batch fact with the bodies of payments whose add is under way or in doubt, by the add's name.

It also contains payments added in the meantime whose response had no id.
"""


def build_external_batch_facts(upstream_id: str) -> dict[str, JSON]:
    """Builds the facts to store for a batch created elsewhere, when it is first locked."""
    # A batch with facts and without an upstream id would be a draft.
    return {"upstream": upstream_id, "version": 0, "elsewhere": True}


def build_unchanged_batch_condition(facts: Mapping[str, JSON]) -> dict[str, JSON]:
    """Builds the condition that no request has locked or changed the batch since it was loaded."""
    return {name: facts.get(name) for name in ("phase", "version", "since")}


def is_batch_unlocked(facts: Mapping[str, JSON]) -> bool:
    """Whether no change of the batch is under way."""
    return facts.get("phase") in UNLOCKED_PHASES and not facts.get(ADDS)


def is_open_to_adds(facts: Mapping[str, JSON]) -> bool:
    """Whether no change of a batch is under way, except adds that are in doubt."""
    return facts.get("phase") in UNLOCKED_PHASES


def is_open_to_signed_changes(facts: Mapping[str, JSON]) -> bool:
    """Whether no edit is under way that may supersede the batch or delete it."""
    # The phase of an add is "editing" too. Edits begin only when there are no adds. An edit of the
    # currency makes the batch again.
    return facts.get("phase") not in ("editing", "making", "deleting") or bool(facts.get(ADDS))


UNLOCKED_PHASES = (None, "sent", "draft", "deleted")


def call_service_under_batch_lock(
    batch: Batch,
    call: Call,
    convert_refusal: Callable[[Refused], Refused] = lambda refusal: refusal,
) -> SubFlow:
    """Makes the call the batch was locked for; releases the lock if it certainly had no effect.

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
    except Conflict:  # the upstream batch was superseded in the meantime
        yield from release_batch_lock(batch)
        raise Halted(BEING_CHANGED, retry_after=1) from None


def release_batch_lock(batch: Batch) -> SubFlow:
    yield CompareAndSet("batch", batch.id, build_released_facts(batch))


def build_released_facts(batch: Batch) -> dict[str, JSON]:
    return {"phase": "draft" if batch.is_draft else "sent", "since": None}


def build_finished_change_facts(facts: Mapping[str, JSON], phase: str) -> dict[str, JSON]:
    """Builds the facts that end a change and release the lock."""
    # The new version makes a request conflict that loaded the batch before the change.
    return {"phase": phase, "since": None, "version": (facts.get("version") or 0) + 1}


MAX_LOCK_ATTEMPTS = 20
"""Maximum number of waits for another request; after them the client is asked to retry later."""
