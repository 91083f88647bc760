"""Starts a batch with the client's own signature.

The request is sent exactly as the client wrote it. This flow acquires the batch's lock, so that a
start and an edit through the legacy interface cannot both win; releases it if the start is refused;
and provides the rule that determines the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping

from mappings import outcome_rules
from mappings.batch_locks import (
    BEING_CHANGED,
    MAX_LOCK_ATTEMPTS,
    build_external_batch_facts,
    build_unchanged_batch_condition,
    is_batch_unlocked,
)
from mappings.batch_reads import WRONG_STATUS
from mappings.drafts import format_timestamp
from mappings.effects import (
    JSON,
    Answer,
    AwaitFacts,
    Call,
    CompareAndSet,
    Flow,
    LoadFacts,
    Operation,
    Request,
)
from mappings.failures import Conflict, Halted, Invalid, Refused, Unreachable
from mappings.payouts import SubFlow


def start_signed_batch(request: Request) -> Flow:
    """Answers POST /batches/:id/start-processing, sent, with its client's own signature.

    POST /batches/:id/start-processing once

    The request's id ``batch`` is the batch's first id, under which its state is stored.
    """
    upstream_id, batch_id = request.ids["id"], request.ids["batch"]
    facts, lock_facts = yield from _acquire_batch_lock_for_start(upstream_id, batch_id, request)
    outcome_rule = outcome_rules.build_batch_start_outcome_rule(upstream_id)
    try:
        yield Call(
            "POST",
            f"/batches/{upstream_id}/start-processing",
            reconcile=outcome_rule,
            only_while_client_waits=True,
        )
    except (Refused, Unreachable, Conflict) as failure:
        # A batch without facts gets none, or it would look as if the gateway had created it.
        facts_before = {"phase": "sent", "since": None} if facts else dict.fromkeys(lock_facts)
        yield CompareAndSet("batch", batch_id, facts_before)
        if isinstance(failure, Conflict):  # the upstream batch was superseded in the meantime
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    # The version counts for a batch created elsewhere too: an edit that loaded it before the start
    # must conflict.
    version = (facts.get("version") or 0) + 1
    started_facts = {
        "phase": "sent",
        "since": None,
        "version": version,
        "started": format_timestamp(request.now),
    }
    yield CompareAndSet("batch", batch_id, started_facts)
    return Answer({})


def _acquire_batch_lock_for_start(upstream_id: str, batch_id: str, request: Request) -> SubFlow:
    """Acquires the lock once no edit is under way; returns the facts before and the facts set."""
    for _ in range(MAX_LOCK_ATTEMPTS):
        redirect = yield LoadFacts("alias", upstream_id)
        if redirect.get("abandoned"):
            raise Invalid(WRONG_STATUS)
        facts = yield LoadFacts("batch", batch_id)
        if _is_being_edited(facts):
            try:
                yield AwaitFacts(
                    "batch",
                    batch_id,
                    condition=lambda awaited_facts: not _is_being_edited(awaited_facts),
                )
            except Conflict:
                break
            continue
        if not _is_startable(facts, upstream_id):
            raise Invalid(WRONG_STATUS)
        lock_facts: dict[str, JSON] = {"phase": "starting", "since": request.now.isoformat()}
        if not facts:
            lock_facts |= build_external_batch_facts(upstream_id)
        expected_redirect = {"abandoned": None, "id": redirect.get("id")}
        # Checked in the same transaction: an edit may supersede the batch between the read and this
        # write.
        redirect_guard = CompareAndSet("alias", upstream_id, {}, expected=expected_redirect)
        try:
            yield CompareAndSet(
                "batch",
                batch_id,
                lock_facts,
                expected=build_unchanged_batch_condition(facts),
                linked=(redirect_guard,),
            )
        except Conflict:
            continue
        return facts, lock_facts
    raise Halted(BEING_CHANGED, retry_after=1)


def _is_being_edited(facts: Mapping[str, JSON]) -> bool:
    return not (is_batch_unlocked(facts) or facts.get("phase") == "starting")


def _is_startable(facts: Mapping[str, JSON], upstream_id: str) -> bool:
    """Whether the batch is unlocked, and ``upstream_id`` is still its id at the service."""
    return not facts or (
        facts.get("phase") in (None, "sent") and facts.get("upstream") == upstream_id
    )


START = Operation(
    "POST",
    "/batches/{id}/start-processing",
    start_signed_batch,
    "current 4.4",
    "exact",
    "passed on as the client signed it",
    answer_shape=None,
)
