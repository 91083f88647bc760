"""Locks of batches, for writes that must not overlap.

If an edit and a start of one batch run at the same time, only one may win; otherwise a client pays
what it has just removed. Each acquires the batch's lock: it sets the fact ``phase`` on condition
that the facts are unchanged since it loaded them. A request that finds the lock taken waits and
loads the batch again; it is never refused for good because of another request. An edit also waits
for changes that clients have sent with their own signature, because a payment that such a change
adds may be missing from the summary, and a draft made from that would lose it. In addition, the
transaction that records an upstream write rejects one that names a superseded batch.

A payment that is being added at the service is stored in the fact ``ADDS`` until its outcome is
known. While it is in doubt, the batch is unlocked only for other adds (contract, section 7,
Blocking).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import structs

from mappings.batch_reads import (
    WRONG_STATUS,
    is_recent,
    load_batch,
    load_batch_again,
    require_no_lost_creation,
)
from mappings.batch_views import SIGNED_ADDS, Batch
from mappings.effects import JSON, AwaitFacts, Call, CompareAndSet, LoadFacts, Request, SubFlow
from mappings.errors import NOT_FOUND
from mappings.failures import Conflict, Failure, Halted, Invalid, Problem, Refused, Unreachable
from mappings.objects import Facts

BEING_CHANGED = Problem(
    "internal_server_error",
    "Another change of this batch is under way; nothing was done. Try again later.",
)

MAX_LOCK_WAITS = 1000
"""Maximum number of other requests' edits that a request waits for; fewer can run at a time."""

MAX_LOCK_ATTEMPTS = 20
"""Maximum number of times that a request loads a batch; then its client is asked to retry later."""

UNLOCKED_PHASES = (None, "sent", "draft", "deleted")

ADDS = "adds"
"""Batch fact with the bodies of payments whose add is under way or in doubt, by the add's name.

It also contains payments added in the meantime whose response had no id.
"""

SIGNED_CHANGES_KIND = "signed"
"""The kind under which the changes of a batch with a client's own signature are stored.

Each change that is under way or in doubt has its own name, with the payment that it adds or an
empty object as the value, so that changes at the same time do not conflict. ``last`` is the name of
the last to begin, and ``changed_at`` the time of the last change or removal of payments. A recipient
has only ``last``, and its time is that of the row."""

LAST_KEY = "last"
CHANGED_AT = "changed_at"


# Facts


def is_batch_unlocked(facts: Facts) -> bool:
    """Whether no change of the batch is under way."""
    return is_open_to_adds(facts) and not facts.get(ADDS)


def is_open_to_adds(facts: Facts) -> bool:
    """Whether no change of a batch is under way, except adds that are in doubt."""
    return facts.get("phase") in UNLOCKED_PHASES


def is_open_to_signed_adds(facts: Facts) -> bool:
    """Whether no edit is under way that may supersede the batch or delete it."""
    # The phase of an add is "editing" too. Edits begin only when there are no adds. An edit of the
    # currency makes the batch again.
    return facts.get("phase") not in ("editing", "making", "deleting") or bool(facts.get(ADDS))


def is_open_to_signed_changes(facts: Facts) -> bool:
    """Like ``is_open_to_signed_adds``, if no add is in doubt, whose payment a change might name."""
    # One that is under way is among them: clients that add one payment after another hold up nobody.
    count_under_way = 1 if facts.get("phase") == "editing" else 0
    is_any_in_doubt = len(facts.get(ADDS) or ()) > count_under_way
    return is_open_to_signed_adds(facts) and not is_any_in_doubt


def list_open_signed_changes(signed_changes: Mapping[str, JSON]) -> list[JSON]:
    """Returns the payments that a batch's open signed changes add, or empty objects."""
    return [value for name, value in signed_changes.items() if name not in (LAST_KEY, CHANGED_AT)]


def has_no_open_signed_change(signed_changes: Mapping[str, JSON]) -> bool:
    return not list_open_signed_changes(signed_changes)


def is_signed_change_recent(batch: Batch, now: datetime) -> bool:
    """Whether the summary may lack what a signed request has changed, which is not known."""
    return is_recent(batch.signed_changes.get(CHANGED_AT), now)


def build_no_new_signed_change_guards(batch: Batch) -> Sequence[CompareAndSet]:
    """Builds the check that no signed change has begun since the batch was loaded.

    A draft needs none: the service does not have it.
    """
    if batch.is_draft:
        return ()
    expected = {LAST_KEY: batch.signed_changes.get(LAST_KEY)}
    return (CompareAndSet(SIGNED_CHANGES_KIND, batch.id, {}, expected=expected),)


def build_external_batch_facts(upstream_id: str) -> dict[str, JSON]:
    """Builds the facts to store for a batch created elsewhere, when it is first locked."""
    # A batch with facts and without an upstream id would be a draft.
    return {"upstream": upstream_id, "version": 0, "elsewhere": True}


def build_unchanged_batch_condition(facts: Facts) -> dict[str, JSON]:
    """Builds the condition that no request has locked or changed the batch since it was loaded."""
    return {name: facts.get(name) for name in ("phase", "version", "since")}


def build_finished_change_facts(facts: Facts, phase: str) -> dict[str, JSON]:
    """Builds the facts that end a change and release the lock."""
    # The new version makes a request conflict that loaded the batch before the change.
    return {"phase": phase, "since": None, "version": (facts.get("version") or 0) + 1}


def identify_lock(request: Request) -> str:
    """Returns the value by which a lock is known to be the request's, even with a coarse clock."""
    return f"{request.now.isoformat()} {request.seed}"


# Waiting


def update_batch_when(
    batch_id: str,
    condition: Callable[[Facts], bool],
    build_update: Callable[[Facts], CompareAndSet],
    upstream_id: str | None = None,
) -> SubFlow:
    """Waits for a condition on a batch's facts, makes an update, and returns the facts before it.

    The update is built again if others have changed the facts meanwhile. Raises Halted after a long
    wait: the conflict is with the client's own other requests, which will end. With ``upstream_id``,
    raises Invalid if that batch is superseded, and Halted if it has the facts of another id by now.
    """
    for _ in range(MAX_LOCK_WAITS):
        guards: tuple[CompareAndSet, ...] = ()
        if upstream_id is not None:
            redirect = yield LoadFacts("alias", upstream_id)
            if redirect.get("abandoned"):
                raise Invalid(WRONG_STATUS)
            # Another batch was submitted as it since, and has the facts.
            if redirect.get("id") not in (None, batch_id):
                break
            expected = {"abandoned": None, "id": redirect.get("id")}
            # Checked in the same transaction: an edit may supersede the batch in between.
            guards = (CompareAndSet("alias", upstream_id, {}, expected=expected),)
        facts = yield LoadFacts("batch", batch_id)
        if not condition(facts):
            try:
                facts = yield AwaitFacts("batch", batch_id, condition=condition)
            except Conflict:
                break
        update = build_update(facts)
        with suppress(Conflict):
            yield structs.replace(update, linked=(*update.linked, *guards))
            return facts
    raise Halted(BEING_CHANGED, retry_after=1)


def retry_on_conflict(batch: Batch, attempt: Callable[[Batch], SubFlow]) -> SubFlow:
    """Makes an attempt, which raises Conflict if the batch was changed since it was loaded.

    After that it waits for the other request, and tries again with the batch as that has left it.
    """
    with suppress(Conflict):
        for _ in range(MAX_LOCK_ATTEMPTS):
            try:
                return (yield from attempt(batch))
            except Conflict:
                yield AwaitFacts("batch", batch.id, condition=is_batch_unlocked)
                batch = yield from load_batch_again(batch)
    raise Halted(BEING_CHANGED, retry_after=1)


# Edits


def change_batch(
    request: Request,
    change: Callable[[Batch], SubFlow],
    *,
    payment_ids: Collection[str] | None,
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
        batch.signed_changes = signed_changes
        with suppress(Conflict):
            return (yield from _run_change(batch, change))
    batch = yield from _load_batch_under_lock(batch.id, request, payment_ids, is_add=is_add)
    return (yield from _run_change(batch, change))


def _run_change(batch: Batch, change: Callable[[Batch], SubFlow]) -> SubFlow:
    try:
        return (yield from change(batch))
    except Failure:
        yield from release_batch_lock(batch)
        raise


def _load_batch_under_lock(
    batch_id: str, request: Request, payment_ids: Collection[str] | None, *, is_add: bool
) -> SubFlow:
    """Acquires the lock for an edit, then loads the batch: a waiting request loads it only once."""

    def build_lock_facts(facts: Facts) -> dict[str, JSON]:
        # A batch created elsewhere has no facts if a start of it was refused meanwhile.
        external_facts = {} if facts else build_external_batch_facts(batch_id)
        return {**external_facts, "phase": "editing", "since": identify_lock(request)}

    def build_lock(facts: Facts) -> CompareAndSet:
        if facts.get("phase") == "deleted":
            raise Invalid(NOT_FOUND)
        is_unchanged = build_unchanged_batch_condition(facts)
        return CompareAndSet("batch", batch_id, build_lock_facts(facts), expected=is_unchanged)

    condition = is_open_to_adds if is_add else is_batch_unlocked
    facts = yield from update_batch_when(batch_id, condition, build_lock)
    try:
        # No signed change begins while the batch is locked, so this wait ends.
        signed_changes = yield (
            LoadFacts(SIGNED_ADDS, batch_id)
            if is_add
            else AwaitFacts(SIGNED_CHANGES_KIND, batch_id, condition=has_no_open_signed_change)
        )
        batch: Batch = yield from load_batch(batch_id, payment_ids)
    except Failure as failure:
        facts_before = {name: facts.get(name) for name in build_lock_facts(facts)}
        yield CompareAndSet("batch", batch_id, facts_before)
        if isinstance(failure, Conflict):
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    batch.signed_changes, batch.requested_id = signed_changes, request.ids["id"]
    batch.lock = {name: batch.facts.get(name) for name in ("phase", "since")}
    return batch


def acquire_batch_lock(
    batch: Batch,
    phase: str,
    request: Request,
    guards: Sequence[CompareAndSet] = (),
    *,
    is_unlocked: Callable[[Facts], bool] = is_batch_unlocked,
    facts: Facts = {},  # noqa: B006 - it is only read
) -> SubFlow:
    """Acquires the batch's lock, and returns it. Raises Conflict if it changed since it was loaded.

    ``guards`` are further conditions, checked in the same transaction, which also stores ``facts``.
    """
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    if phase == "editing" and not batch.is_draft:
        # A draft that is made of it could be started.
        yield from require_no_lost_creation(batch)
    if batch.lock:
        if facts:
            yield CompareAndSet("batch", batch.id, facts)
        return batch
    if not is_unlocked(batch.facts):
        raise Conflict("batch")
    lock = {"phase": phase, "since": identify_lock(request)}
    facts = {**facts, **lock}
    if not batch.facts:
        shown = {name: batch.service_fields.get(name) for name in ("description", "createdAt")}
        facts |= {**build_external_batch_facts(batch.id), "currency": batch.currency, **shown}
    is_unchanged = build_unchanged_batch_condition(batch.facts)
    yield CompareAndSet("batch", batch.id, facts, expected=is_unchanged, linked=guards)
    batch.lock = lock
    return batch


def call_service_under_lock(
    call: Call,
    release: SubFlow,
    convert_refusal: Callable[[Refused], Refused] = lambda refusal: refusal,
) -> SubFlow:
    """Makes the call a batch was locked for; runs ``release`` if it certainly had no effect.

    A write without a response (``Unknown``) keeps the lock: it may have been executed.
    """
    try:
        return (yield call)
    except (Refused, Unreachable, Conflict) as failure:
        yield from release
        if isinstance(failure, Refused):
            raise convert_refusal(failure) from None
        if isinstance(failure, Conflict):  # the upstream batch was superseded in the meantime
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise


def release_batch_lock(batch: Batch) -> SubFlow:
    """Releases the lock that this request holds, if any."""
    if batch.lock:
        facts = {"phase": "draft" if batch.is_draft else "sent", "since": None}
        # The end of an add has released it already.
        with suppress(Conflict):
            yield CompareAndSet("batch", batch.id, facts, expected=batch.lock)
        batch.lock = None
