"""A start with the client's own signature.

The request is sent exactly as the client wrote it. This flow adds what every start needs: it
acquires the batch's lock, so that it and an edit through the legacy interface cannot both win,
releases it if the start is refused, and gives the rule that finds its outcome.
"""

from __future__ import annotations

from collections.abc import Mapping

from mappings import settling
from mappings.batch_reads import WRONG_STATUS
from mappings.drafts import (
    BEING_CHANGED,
    ROUNDS,
    build_batch_condition,
    build_external_batch_facts,
    format_timestamp,
    is_unlocked,
)
from mappings.grammar import (
    JSON,
    Answer,
    Await,
    Call,
    Conflict,
    Flow,
    Halted,
    Invalid,
    Operation,
    Recall,
    Record,
    Refused,
    Request,
    Unreachable,
)
from mappings.payouts import Sub


def start_signed_batch(request: Request) -> Flow:
    """POST /batches/:id/start-processing, with its client's own signature

    POST /batches/:id/start-processing once

    The request's id ``batch`` is the batch's first id, under which its state is stored.
    """
    upstream, batch = request.ids["id"], request.ids["batch"]
    facts, taken = yield from _taken(upstream, batch, request)
    settle = settling.settle_start(upstream)
    try:
        yield Call("POST", f"/batches/{upstream}/start-processing", settle=settle, prompt=True)
    except (Refused, Unreachable, Conflict) as failure:
        before = {"phase": "sent", "since": None} if facts else dict.fromkeys(taken)
        yield Record("batch", batch, before)
        if isinstance(failure, Conflict):  # the upstream batch was superseded meanwhile
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    # The version counts for a batch created elsewhere too: an edit that loaded it before the start
    # must conflict.
    version = (facts.get("version") or 0) + 1
    started = {
        "phase": "sent",
        "since": None,
        "version": version,
        "started": format_timestamp(request.now),
    }
    yield Record("batch", batch, started)
    return Answer({})


def _taken(upstream: str, batch: str, request: Request) -> Sub:
    """Acquire the lock once no edit is under way; return the facts before and the facts set."""
    for _ in range(ROUNDS):
        alias = yield Recall("alias", upstream)
        if alias.get("abandoned"):
            raise Invalid(WRONG_STATUS)
        facts = yield Recall("batch", batch)
        if _is_being_edited(facts):
            try:
                yield Await("batch", batch, until=lambda those: not _is_being_edited(those))
            except Conflict:
                break
            continue
        if not _may_be_started(facts, upstream):
            raise Invalid(WRONG_STATUS)
        taken: dict[str, JSON] = {"phase": "starting", "since": request.now.isoformat()}
        if not facts:
            taken |= build_external_batch_facts(upstream)
        named = {"abandoned": None, "id": alias.get("id")}
        still = Record("alias", upstream, {}, find=named)
        try:
            yield Record("batch", batch, taken, find=build_batch_condition(facts), also=(still,))
        except Conflict:
            continue
        return facts, taken
    raise Halted(BEING_CHANGED, retry_after=1)


def _is_being_edited(facts: Mapping[str, JSON]) -> bool:
    return not (is_unlocked(facts) or facts.get("phase") == "starting")


def _may_be_started(facts: Mapping[str, JSON], upstream: str) -> bool:
    """Whether the batch is unlocked, and ``upstream_id`` is still its id at the service."""
    return not facts or (facts.get("phase") in (None, "sent") and facts.get("upstream") == upstream)


START = Operation(
    "POST",
    "/batches/{id}/start-processing",
    start_signed_batch,
    "current 4.4",
    "exact",
    "passed on as the client signed it",
    gives=None,
)
