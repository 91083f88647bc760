"""Gives up an operation that cannot be continued, and releases its locks.

For example, one that an earlier version of the gateway started and this version would continue
differently. An operator completes the missing steps by hand.
"""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from gateway.operator import ActionRefused
from gateway.operator.in_doubt_writes import (
    find_write_by_shown_id,
    is_verdict_refuted,
)
from gateway.storage import ObjectStateStore, Store
from gateway.storage.operation_records import (
    OPERATOR_OUTCOMES,
    Checkpoint,
    OperationRecord,
    OwnershipLostError,
    Write,
)
from gateway.storage.operations import OperationRepository
from gateway.writes import states
from gateway.writes.outcome_policy import TOO_EARLY_REASON, UNREADABLE_REASON
from gateway.writes.reconciler import build_change_releases
from gateway.writes.step_records import decode_request
from mappings.effects import CompareAndSet
from mappings.failures import Conflict
from mappings.forwarded_writes import FORWARDED_PREFIX

_CREATING_OPERATIONS = ("create_recipient", "create_batch", "create_payment", "update_batch")
"""The operations that create a recipient, a batch or payments each time they are executed."""

MAX_ATTEMPTS, WAITING_ATTEMPTS, RETRY_SECONDS = 24, 19, 0.25
"""Attempts, those of them that leave a verdict to the gateway, and the seconds between them. A running
gateway claims an operation in doubt for a moment each time it tries to resolve it, and applies a
verdict within two seconds if it agrees with what the service shows.
"""


async def close_in_doubt_operation(store: Store, write_id: str) -> None:
    """Closes the operation of a write. Raises ActionRefused if it cannot be closed or stays
    busy.
    """
    for attempt in range(MAX_ATTEMPTS):
        waits = attempt < WAITING_ATTEMPTS
        if await _try_close_operation(store, write_id, waits_for_gateway=waits):
            return
        await asyncio.sleep(RETRY_SECONDS)
    raise ActionRefused(
        f"a running gateway is resolving {write_id} right now; try again in a minute"
    )


async def _try_close_operation(store: Store, write_id: str, *, waits_for_gateway: bool) -> bool:
    """Tries once; raises ActionRefused.

    False if a running gateway claims the operation, or may yet apply a verdict.
    """
    record, _write = await find_write_by_shown_id(store, write_id)
    # A gateway has claimed it to resolve it, which takes only a moment. Its result may change the
    # answer, so wait.
    if record.state == states.RUNNING and record.reason is not None:
        return False
    if record.state != states.IN_DOUBT:
        raise ActionRefused(
            f"{write_id} belongs to a request that is {record.state}; it does not need to be closed"
        )
    ledger = ObjectStateStore(store)
    repository = OperationRepository(store, ledger)
    record_writes = (await repository.load_writes(record.id))[record.id]
    # Closing frees the batches. If an unknown write had started one, a retry would pay it again.
    if any(
        write.state == states.SENT and write.operator_outcome is None for write in record_writes
    ):
        raise ActionRefused(
            f"it is not known whether {write_id} happened; record that with `payout-gateway writes settle` first"
        )
    unapplied_writes = [write for write in record_writes if write.state == states.SENT]
    # Its readings take precedence: a write that did happen would be sent again by a retry.
    if unapplied_writes and waits_for_gateway:
        return False
    if unapplied_writes and (record.reason or "").startswith((UNREADABLE_REASON, TOO_EARLY_REASON)):
        raise ActionRefused(f"wait until the outcome can be checked: {record.reason}")
    if any(is_verdict_refuted(record, write) for write in unapplied_writes):
        raise ActionRefused(f"the outcome recorded for {write_id} cannot be right: {record.reason}")
    settled_writes = [
        _resolve_write_by_operator_verdict(write, store) for write in unapplied_writes
    ]
    final_writes = {write.number: write for write in [*record_writes, *settled_writes]}
    has_happened = any(
        write.state in (states.ANSWERED, states.CONFIRMED) for write in final_writes.values()
    )
    # Its client has no response: the same request again would create the same once more.
    is_creation = record.operation.removeprefix(FORWARDED_PREFIX) in _CREATING_OPERATIONS
    end_state = states.DONE if is_creation else states.ANSWERED
    point = Checkpoint(
        resolved_writes=settled_writes,
        object_changes=await _build_batch_unlock_records(store, record, [*final_writes.values()]),
        column_values={"state": end_state if has_happened else states.UNDONE, "reason": None},
        # Nothing continues the operation, so its encrypted request and steps are no longer needed.
        drops_payload=True,
        audit_action="closed",
    )
    try:
        await repository.save_checkpoint(record, point)
    # Another process claimed the operation, or a client changed one of its batches, since the read.
    except (OwnershipLostError, Conflict):
        return False
    return True


def _resolve_write_by_operator_verdict(write: Write, store: Store) -> Write:
    state = states.ABSENT if write.operator_outcome == states.ABSENT else states.CONFIRMED
    created_id = None if write.operator_outcome in OPERATOR_OUTCOMES else write.operator_outcome
    return structs.replace(write, state=state, object_id=created_id, resolved_at=store.clock())


async def _build_batch_unlock_records(
    store: Store, record: OperationRecord, final_writes: Sequence[Write]
) -> list[CompareAndSet]:
    """Records that unlock the operation's batches, with the effect of its last write."""
    last_write = final_writes[-1]
    has_happened = last_write.state in (states.ANSWERED, states.CONFIRMED)
    if record.request is None:
        return []
    request, _steps = decode_request(record.request)
    # The format of the service's timestamps, which the batch record uses.
    time = f"{last_write.recorded_at:%Y-%m-%dT%H:%M:%S.000Z}"
    return await build_change_releases(
        ObjectStateStore(store),
        record,
        request,
        executed_at=time if has_happened else None,
        created_id=last_write.object_id,
    )
