"""Writes of batches with the client's own signature, sent exactly as the client wrote them.

A start acquires the batch's lock, so that a start and an edit through the legacy interface cannot
both win; releases it if it is refused; and has the rule that determines its outcome. Any other
change waits for such edits, and is registered while it is under way or in doubt, so that an edit
waits for it: a batch that an edit supersedes without the payment that a change adds would lose it.

The request's id ``batch`` is the batch's first id, under which its state is stored.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from mappings.batch_locks import (
    CHANGED_AT,
    LAST_KEY,
    SIGNED_CHANGES_KIND,
    build_external_batch_facts,
    build_finished_change_facts,
    build_unchanged_batch_condition,
    call_service_under_lock,
    is_batch_unlocked,
    is_open_to_signed_adds,
    is_open_to_signed_changes,
    update_batch_when,
)
from mappings.batch_outcomes import build_batch_start_call
from mappings.batch_reads import WRONG_STATUS, await_creation, may_be_lost_creation
from mappings.batch_views import SIGNED_ADDS
from mappings.current import ID_PATTERN, SUMMARY_PATH
from mappings.dates import format_timestamp
from mappings.effects import (
    JSON,
    Answer,
    Call,
    CompareAndSet,
    Flow,
    InDoubtWrite,
    LoadFacts,
    MayExist,
    Operation,
    OutcomeReads,
    Request,
    SubFlow,
)
from mappings.failures import Conflict, Failure, Invalid, PossiblyExecuted, Refused
from mappings.objects import Facts
from mappings.payloads import extract_batch
from mappings.start_checks import require_not_started_elsewhere

_LATEST_EXECUTION = timedelta(minutes=1)
"""Time after a request within which it can be executed: its timestamp may be 30 seconds ahead, and is
accepted for as long (current interface, section 5)."""


def start_signed_batch(request: Request) -> Flow:
    """Answers POST /batches/:id/start-processing, sent, with its client's own signature.

    GET  /batch/:id/summary            of each batch that it supersedes, in parallel
    POST /batches/:id/start-processing once
    """
    upstream_id, batch_id = request.ids["id"], request.ids["batch"]
    known_facts = yield LoadFacts("batch", batch_id)
    # Whether or not the service can be read.
    if upstream_id in known_facts.get("abandoned", ()):
        raise Invalid(WRONG_STATUS)
    if may_be_lost_creation(known_facts) and (yield from _await_creation(upstream_id, batch_id)):
        raise Invalid(WRONG_STATUS)

    def build_lock(facts: Facts) -> CompareAndSet:
        is_unlocked = facts.get("phase") in (None, "sent")
        # The id at the service may have been replaced while this request waited.
        if facts and not (is_unlocked and facts.get("upstream") == upstream_id):
            raise Invalid(WRONG_STATUS)
        lock_facts = {} if facts else build_external_batch_facts(upstream_id)
        lock_facts |= {"phase": "starting", "since": request.now.isoformat()}
        is_unchanged = build_unchanged_batch_condition(facts)
        return CompareAndSet("batch", batch_id, lock_facts, expected=is_unchanged)

    facts = yield from update_batch_when(batch_id, is_batch_unlocked, build_lock, upstream_id)

    def release() -> SubFlow:
        facts_before: dict[str, JSON] = {"phase": "sent", "since": None}
        if not facts:
            # It gets none again, or it would look as if the gateway had created it.
            facts_before = dict.fromkeys([*facts_before, *build_external_batch_facts(upstream_id)])
        yield CompareAndSet("batch", batch_id, facts_before)

    try:
        # Once it is locked: somebody may start one of them while this request waits for an edit.
        yield from require_not_started_elsewhere(facts)
    except Failure:
        yield from release()
        raise
    yield from call_service_under_lock(build_batch_start_call(upstream_id), release())
    # The version counts for a batch created elsewhere too: an edit that loaded it before the start
    # must conflict.
    finished_facts = build_finished_change_facts(facts, "sent")
    started = format_timestamp(request.now)
    yield CompareAndSet("batch", batch_id, {**finished_facts, "started": started})
    return Answer({})


def change_signed_batch(request: Request) -> Flow:
    """Answers any other write of batches, sent once, with its client's own signature.

    The request's body has the ``method`` and ``path``, the ``payment`` that it adds, or None, and of a
    bulk deletion the ``batches``: pairs of an id at the service and the batch's first id. A creation
    has none, and the ``payments`` that are not in its currency.
    """
    name, payment = request.seed, request.body["payment"]
    batches = request.body.get("batches")
    if batches is None:
        upstream_id, batch_id = request.ids["id"], request.ids["batch"]
        batches = [[upstream_id, batch_id]]
        # The result of a creation in doubt is recognized by its payments.
        if may_be_lost_creation((yield LoadFacts("batch", batch_id))):
            yield from _await_creation(upstream_id, batch_id)
    registered: list[str] = []

    def release() -> SubFlow:
        for batch_id in registered:
            yield CompareAndSet(SIGNED_CHANGES_KIND, batch_id, {name: None})

    try:
        for upstream_id, batch_id in batches:
            yield from _register_change(upstream_id, batch_id, name, payment)
            registered.append(batch_id)
    except Failure:
        yield from release()
        raise
    target = request.body["method"], request.body["path"]
    call = Call(*target, reconcile=_may_exist, only_while_client_waits=True)
    try:
        created = yield from call_service_under_lock(call, release())
    except PossiblyExecuted:
        yield from _record_possible_execution(request, registered)
        raise
    yield from _record_additions(request, registered, created)
    return Answer({})


def _record_possible_execution(request: Request, batch_ids: Sequence[str]) -> SubFlow:
    payment = request.body["payment"]
    latest = format_timestamp(request.now + _LATEST_EXECUTION)
    for batch_id in batch_ids:
        if payment:
            # It may be there, and is neither a stranger's nor that of another add.
            yield CompareAndSet(SIGNED_ADDS, batch_id, {request.seed: payment})
        elif not _is_quote(request):
            yield CompareAndSet(SIGNED_CHANGES_KIND, batch_id, {CHANGED_AT: latest})


def _record_additions(
    request: Request, batch_ids: Sequence[str], created: Mapping[str, JSON]
) -> SubFlow:
    """Ends the registrations of a change, and records the batch or payment that it has created."""
    name, payment = request.seed, request.body["payment"]
    for batch_id in batch_ids:
        # Recorded, so that the check before a start does not report the payment as a stranger's, and
        # that a legacy add in doubt does not take it for its own.
        changed_at = format_timestamp(request.now)
        facts = {name: {**payment, **created, "changed_at": changed_at}} if payment else {}
        added = [CompareAndSet(SIGNED_ADDS, batch_id, facts)] if facts else []
        ended = {name: None} | ({} if payment or _is_quote(request) else {CHANGED_AT: changed_at})
        yield CompareAndSet(SIGNED_CHANGES_KIND, batch_id, ended, linked=added)
    if batch_ids or not (new_batch_id := created.get("id")):
        return
    # Legacy clients of the merchant find it in their lists, also if the service lists no batches.
    created_at = created.get("createdAt") or format_timestamp(request.now)
    batch_facts = {**build_external_batch_facts(new_batch_id), "createdAt": created_at}
    with suppress(Conflict):  # an edit that found it in the service's list has recorded it already
        yield CompareAndSet("batch", new_batch_id, batch_facts, expected={"version": None})
    if payments := request.body.get("payments"):
        # By these, a draft of the batch keeps the amounts that their recipients get.
        facts = {f"{name} {position}": each for position, each in enumerate(payments)}
        yield CompareAndSet(SIGNED_ADDS, new_batch_id, facts)


def _is_quote(request: Request) -> bool:
    """Whether the change is a quote, which changes no payment that a draft would have."""
    return bool(request.body["path"].endswith("/generate-quote"))


def _await_creation(upstream_id: str, batch_id: str) -> SubFlow:
    """Waits as ``await_creation`` for a batch that is not loaded, and returns the same.

    Raises the service's 404 of a batch that may exist.
    """
    # No creation can have made it: the service says what it thinks of this id.
    if not re.fullmatch(ID_PATTERN, upstream_id):
        return False
    if not (unseen_times := (yield LoadFacts("may exist", ids=(upstream_id,)))):
        return False
    refusal = summary = None
    try:
        summary = yield Call("GET", SUMMARY_PATH.format(id=upstream_id))
    except Refused as refused:
        if refused.status != 404:
            raise
        # A batch that was just created is shown late, so it may be of any date.
        refusal = refused
    created_at = extract_batch(summary).get("createdAt") if summary else None
    may_exist = yield from await_creation(batch_id, upstream_id, created_at, unseen_times)
    if may_exist and refusal is not None:
        raise refusal
    return may_exist


def _register_change(upstream_id: str, batch_id: str, name: str, payment: JSON) -> SubFlow:
    """Registers the change once no edit is under way; one that is no add, once no add is in doubt."""

    def build_registration(facts: Facts) -> CompareAndSet:
        # Checked in the same transaction: an edit may begin meanwhile.
        lock = {key: facts.get(key) for key in ("phase", "since")}
        guard = CompareAndSet("batch", batch_id, {}, expected=lock)
        new_facts = {name: payment or {}, LAST_KEY: name}
        return CompareAndSet(SIGNED_CHANGES_KIND, batch_id, new_facts, linked=(guard,))

    condition = is_open_to_signed_changes if payment is None else is_open_to_signed_adds
    yield from update_batch_when(batch_id, condition, build_registration, upstream_id)


def _may_exist(_write: InDoubtWrite) -> OutcomeReads:
    """Outcome rule of a change, which its client can look for: it ends when it can no longer come."""
    yield from ()
    return MayExist(reason="its client looks for it")


START = Operation(
    "POST",
    "/batches/{id}/start-processing",
    start_signed_batch,
    "exact",
    "passed on as the client signed it",
    answer_shape=None,
)

BLOCKED_BY_SIGNED_CHANGES = frozenset({"update_batch", "update_payment", "delete_payment"})
"""The edits that may supersede a batch, and so wait for the changes that clients have signed."""

CHANGE = Operation(
    "POST",
    "/batches/{id}",
    change_signed_batch,
    "exact",
    "passed on as the client signed it",
    answer_shape=None,
)
