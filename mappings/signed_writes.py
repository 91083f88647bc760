"""Writes of batches with the client's own signature, sent exactly as the client wrote them.

A start acquires the batch's lock, so that a start and an edit through the legacy interface cannot
both win; releases it if it is refused; and has the rule that determines its outcome. Any other
change waits for such edits, and is registered while it is under way or in doubt, so that an edit
waits for it: a batch that an edit supersedes without the payment that a change adds would lose it.

The request's id ``batch`` is the batch's first id, under which its state is stored.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any

from mappings import outcome_rules
from mappings.batch_locks import (
    BEING_CHANGED,
    MAX_LOCK_ATTEMPTS,
    SIGNED_CHANGES_KIND,
    build_external_batch_facts,
    build_finished_change_facts,
    build_signed_change_facts,
    build_unchanged_batch_condition,
    is_batch_unlocked,
    is_open_to_signed_changes,
)
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import SIGNED_ADDS
from mappings.current import SUMMARY_PATH
from mappings.drafts import format_timestamp
from mappings.effects import (
    JSON,
    Answer,
    AwaitFacts,
    Call,
    CompareAndSet,
    Flow,
    InDoubtWrite,
    LoadFacts,
    MayExist,
    Operation,
    Request,
    Step,
    SubFlow,
    WriteOutcome,
)
from mappings.failures import Conflict, Halted, Invalid, Refused, Unreachable
from mappings.payloads import extract_batch
from mappings.start_checks import require_not_created_with


def start_signed_batch(request: Request) -> Flow:
    """Answers POST /batches/:id/start-processing, sent, with its client's own signature.

    POST /batches/:id/start-processing once
    """
    upstream_id, batch_id = request.ids["id"], request.ids["batch"]
    facts, lock_facts = yield from _acquire_batch_lock_for_start(upstream_id, batch_id, request)
    try:
        yield outcome_rules.build_batch_start_call(upstream_id)
    except (Refused, Unreachable, Conflict) as failure:
        # A batch without facts gets none, or it would look as if the gateway had created it.
        facts_before = {"phase": "sent", "since": None} if facts else dict.fromkeys(lock_facts)
        yield CompareAndSet("batch", batch_id, facts_before)
        if isinstance(failure, Conflict):  # the upstream batch was superseded in the meantime
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    # The version counts for a batch created elsewhere too: an edit that loaded it before the start
    # must conflict.
    finished_facts = build_finished_change_facts(facts, "sent")
    started = format_timestamp(request.now)
    yield CompareAndSet("batch", batch_id, {**finished_facts, "started": started})
    return Answer({})


def _acquire_batch_lock_for_start(upstream_id: str, batch_id: str, request: Request) -> SubFlow:
    """Acquires the lock once no change is under way; returns the facts before and the facts set."""
    for _ in range(MAX_LOCK_ATTEMPTS):
        redirect = yield LoadFacts("alias", upstream_id)
        if redirect.get("abandoned"):
            raise Invalid(WRONG_STATUS)
        facts = yield LoadFacts("batch", batch_id)
        if not is_batch_unlocked(facts):
            try:
                yield AwaitFacts("batch", batch_id, condition=is_batch_unlocked)
            except Conflict:
                break
            continue
        if not _is_startable(facts, upstream_id):
            raise Invalid(WRONG_STATUS)
        lock_facts: dict[str, JSON] = {"phase": "starting", "since": request.now.isoformat()}
        if not facts:
            if unseen_times := (yield LoadFacts("may exist", ids=(upstream_id,))):
                summary = yield Call("GET", SUMMARY_PATH.format(id=upstream_id))
                created_at = extract_batch(summary).get("createdAt")
                require_not_created_with(unseen_times.values(), created_at)
            lock_facts |= build_external_batch_facts(upstream_id)
        expected_redirect = {"abandoned": None, "id": redirect.get("id")}
        # Checked in the same transaction: an edit may supersede the batch between the read and this
        # write.
        redirect_guard = CompareAndSet("alias", upstream_id, {}, expected=expected_redirect)
        is_unchanged, linked = build_unchanged_batch_condition(facts), (redirect_guard,)
        with suppress(Conflict):
            yield CompareAndSet("batch", batch_id, lock_facts, expected=is_unchanged, linked=linked)
            return facts, lock_facts
    raise Halted(BEING_CHANGED, retry_after=1)


def _is_startable(facts: Mapping[str, JSON], upstream_id: str) -> bool:
    """Whether the batch is unlocked, and ``upstream_id`` is still its id at the service."""
    is_unlocked = facts.get("phase") in (None, "sent")
    return not facts or (is_unlocked and facts.get("upstream") == upstream_id)


def change_signed_batch(request: Request) -> Flow:
    """Answers any other write of batches, sent once, with its client's own signature.

    The request's body has the ``method`` and ``path``, the ``payment`` that it adds, if any, and of a
    bulk deletion the ``batches``: pairs of an id at the service and the batch's first id. A creation
    has none.
    """
    name, payment = request.seed, request.body["payment"]
    batches = request.body.get("batches")
    if batches is None:
        batches = [[request.ids["id"], request.ids["batch"]]]
    registered: list[str] = []
    target = request.body["method"], request.body["path"]
    call = Call(*target, reconcile=_may_exist, only_while_client_waits=True)
    try:
        for upstream_id, batch_id in batches:
            yield from _register_change(upstream_id, batch_id, name, payment)
            registered.append(batch_id)
        yield call
    except (Invalid, Halted, Refused, Unreachable, Conflict) as failure:
        for batch_id in registered:
            yield CompareAndSet(SIGNED_CHANGES_KIND, batch_id, {name: None})
        if isinstance(failure, Conflict):  # the upstream batch was superseded in the meantime
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    for batch_id in registered:
        # Recorded, so that the check before a start does not report the payment as a stranger's.
        facts = {name: {**payment, "changed_at": format_timestamp(request.now)}} if payment else {}
        added = [CompareAndSet(SIGNED_ADDS, batch_id, facts)] if facts else []
        yield CompareAndSet(SIGNED_CHANGES_KIND, batch_id, {name: None}, linked=added)
    return Answer({})


def _register_change(upstream_id: str, batch_id: str, name: str, payment: JSON) -> SubFlow:
    """Registers the change once no edit is under way."""
    for _ in range(MAX_LOCK_ATTEMPTS):
        redirect = yield LoadFacts("alias", upstream_id)
        if redirect.get("abandoned"):
            raise Invalid(WRONG_STATUS)
        try:
            facts = yield AwaitFacts("batch", batch_id, condition=is_open_to_signed_changes)
        except Conflict:
            break
        # Checked in the same transaction: an edit may begin, or supersede the batch, between the
        # reads and this write.
        lock = {key: facts.get(key) for key in ("phase", "since")}
        names = {"abandoned": None, "id": redirect.get("id")}
        checks = (
            CompareAndSet("batch", batch_id, {}, expected=lock),
            CompareAndSet("alias", upstream_id, {}, expected=names),
        )
        new_facts = build_signed_change_facts(name, payment)
        with suppress(Conflict):
            yield CompareAndSet(SIGNED_CHANGES_KIND, batch_id, new_facts, linked=checks)
            return
    raise Halted(BEING_CHANGED, retry_after=1)


def _may_exist(_write: InDoubtWrite) -> Generator[Step, Any, WriteOutcome]:
    """Outcome rule of a change, which its client can look for: it ends when it can no longer come."""
    yield from ()
    return MayExist()


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
