"""A start that its client signed itself: what the ledger lets it do, and how it is settled.

It is sent as its client wrote it. Here is what any other start has besides: it takes the batch, so
that it and an edit through the legacy face cannot both win, and gives it back where it is refused.
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
    ``batch`` among the ids is the one that the ledger knows the batch by.
    """
    upstream, batch = request.ids["id"], request.ids["batch"]
    facts, taken = yield from _taken(upstream, batch, request)
    settle = settling.settle_start(upstream)
    try:
        yield Call("POST", f"/batches/{upstream}/start-processing", settle=settle, prompt=True)
    except (Refused, Unreachable, Conflict) as failure:
        before = {"phase": "sent", "since": None} if facts else dict.fromkeys(taken)
        yield Record("batch", batch, before)
        if isinstance(failure, Conflict):  # the service's batch was superseded meanwhile
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    # Of a batch made elsewhere too: an edit that read it before must find another version.
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
    """Takes the batch, once no edit of it is under way; what was known of it, and is from now on."""
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
    """Whether it is the service's batch, still that one, and no change of it is under way."""
    return not facts or (facts.get("phase") in (None, "sent") and facts.get("upstream") == upstream)


START = Operation(
    "POST",
    "/batches/{id}/start-processing",
    start_signed_batch,
    "current 4.4",
    "exact",
    "passed on as its client signed it",
    gives=None,
)
