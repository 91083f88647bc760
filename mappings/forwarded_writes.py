"""Writes that are forwarded to the legacy service, as operations of one call.

The call is sent in the client's own bytes, so the flow only names it. Its outcome cannot be read
from the legacy service: without a response an operator determines it (contract, section 7).

The flow records which batches are at the legacy service (kind ``begun``, by the client's id). The
gateway sets these marks together with the write; ``by`` is the operation that was the first to use
the batch, and deletes the mark again if it was not executed.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappings.batch_reads import WRONG_STATUS, await_creation
from mappings.effects import (
    JSON,
    Answer,
    Call,
    CompareAndSet,
    Confirmed,
    Flow,
    Inconclusive,
    InDoubtWrite,
    LoadFacts,
    Operation,
    OutcomeReads,
    Request,
    Step,
)
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid, Refused
from mappings.outcome_matching import fetch_if_exists
from mappings.payloads import extract_batch

FORWARDED_PREFIX = "forwarded "
"""Prefix of the operation name of a request that was forwarded to the legacy service."""
ROUTING_KIND = "begun"
"""Kind of object state that holds the marks."""
LEGACY_MARK: Mapping[str, JSON] = {"at": "legacy"}
NO_MARK: Mapping[str, JSON] = {"at": None, "by": None}
"""Deletes a mark as new facts, and matches a missing mark as expected facts."""

_SINGLE_BATCH_OPERATIONS = frozenset({"delete_batch", "generate_quote", "start_batch"})
"""They name only the batch, so that a 404 means that the batch does not exist."""
BATCH_DELETIONS = frozenset({"delete_batch", "delete_batches"})


def build_forwarded_operation(operation: Operation) -> Operation:
    """Builds the operation that forwards a write; its requests have the client's own ids."""

    def forward(request: Request) -> Flow:
        call = Call(
            operation.method,
            operation.path.format(**request.ids),
            reconcile=_determine_outcome_from_operator,
            only_while_client_waits=operation.name == "start_batch",
            match_fields=[dict(request.ids), request.body],
        )
        try:
            body = yield call
        except Refused as refused:
            # The batch exists nowhere, so nothing needs its mark any more. A 404 without the error
            # code is a page of a proxy.
            is_missing = any(problem.code == NOT_FOUND.code for problem in refused.problems)
            if is_missing and operation.name in _SINGLE_BATCH_OPERATIONS:
                yield from _delete_marks(operation, request)
            raise
        if operation.name == "create_batch" and body.get("id"):
            # Recorded with the response: a batch that the client knows always has its mark.
            # No other operation that used the batch meanwhile may delete the mark any more.
            yield CompareAndSet(ROUTING_KIND, str(body["id"]), {**LEGACY_MARK, "by": None})
        if operation.name in BATCH_DELETIONS:
            yield from _delete_marks(operation, request)
        return Answer(body)

    forward.__name__ = f"{FORWARDED_PREFIX}{operation.name}"
    return replace(operation, flow=forward)


def require_known_creation(batch_id: str) -> Flow:
    """Waits until no create that may have made the batch is in doubt; comes before its start.

    GET /batches/:id  at the legacy service

    Raises Halted if one stays in doubt: its client may create, and start, another batch.
    """
    if unseen_times := (yield LoadFacts("may exist", ids=(batch_id,))):
        body = yield from fetch_if_exists(f"/batches/{batch_id}", needs_proof=True)
        if body is None:
            raise Invalid(NOT_FOUND)
        created_at = extract_batch(body).get("createdAt")
        if (yield from await_creation(batch_id, batch_id, created_at, unseen_times)):
            raise Invalid(WRONG_STATUS)
    return Answer({})


def list_batch_ids(operation: Operation, request: Request) -> Sequence[str]:
    if not operation.path.startswith("/batches"):
        return []
    # The first id in a path below /batches is the batch; a second one is a payment.
    if request.ids:
        return [*request.ids.values()][:1]
    ids = request.body.get("ids") if isinstance(request.body, dict) else None
    return [id_ for id_ in ids if isinstance(id_, str)] if isinstance(ids, list) else []


def _delete_marks(operation: Operation, request: Request) -> Generator[Step, Any, None]:
    for batch_id in list_batch_ids(operation, request):
        yield CompareAndSet(ROUTING_KIND, batch_id, NO_MARK)


def _determine_outcome_from_operator(write: InDoubtWrite) -> OutcomeReads:
    """Outcome rule of a write at the legacy service, which the gateway cannot read."""
    yield from ()
    if write.operator_object_id is not None:
        return Confirmed({"id": write.operator_object_id}, write.operator_object_id)
    return Inconclusive("it was forwarded to the legacy service, which the gateway cannot read")
