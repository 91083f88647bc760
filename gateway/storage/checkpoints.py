"""Saves checkpoints of operations, each in one transaction.

A checkpoint is refused if another instance has taken the operation over since: a process that was
paused must not continue where another one has continued.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import structs

from gateway.storage import chunks, state_changes
from gateway.storage import operation_statements as statements
from gateway.storage.audit_log import INSERT_AUDIT_EVENT, build_event_row, is_tenant_in_scope
from gateway.storage.database import FEW, Change, Transaction
from gateway.storage.id_rows import insert_legacy_ids
from gateway.storage.object_state import ObjectStateStore
from gateway.storage.operation_records import (
    AlreadyClaimedError,
    Checkpoint,
    DuplicateOperationError,
    OperationRecord,
    OwnershipLostError,
    RestoreUncheckedError,
    Write,
    WritesFrozenError,
)
from gateway.storage.operation_texts import OperationTexts
from gateway.storage.sql import Parameters
from gateway.storage.store import Store
from gateway.storage.tenants import Tenant
from gateway.writes.states import IN_DOUBT, RUNNING
from mappings.current import ID_PATTERN

_PATH_IDS = re.compile(rf"(?<=/){ID_PATTERN}(?=[/?]|$)")
"""Matches the ids in a path; an action such as `start-processing` is not an id."""

MAX_COMBINED_OBJECTS = 4
"""Rows of object ids that are inserted together with the other rows."""


class CheckpointWriter:
    """Saves checkpoints.

    ``may_be_sending`` returns whether an operation, which an instance is running, may have a write
    in flight.
    """

    def __init__(
        self,
        store: Store,
        object_states: ObjectStateStore,
        texts: OperationTexts,
        may_be_sending: Callable[[str, str], bool],
    ) -> None:
        self._store = store
        self._object_states = object_states
        self._texts = texts
        self._may_be_sending = may_be_sending

    async def save_checkpoint(self, record: OperationRecord, checkpoint: Checkpoint) -> bool:
        """Commits a checkpoint; returns whether it took ``recipient_lock``.

        Raises OwnershipLostError, WritesFrozenError, RestoreUncheckedError, DuplicateOperationError,
        AlreadyClaimedError, Conflict, IdCollisionError or StoreUnavailable.
        """
        changes = checkpoint.object_changes
        # Before the transaction, because it holds locks that others wait for.
        is_long = bool(changes) and state_changes.has_long_changes(changes)
        if is_long:
            changes = await state_changes.encode_long_changes(changes)
            checkpoint = structs.replace(checkpoint, object_changes=changes)
        # SQLite has one writer at a time.
        is_of_one_process = self._store.is_of_one_process
        locks = frozenset() if is_of_one_process else self._list_lock_names(record, checkpoint)
        object_ids = _list_new_object_ids(record, checkpoint)
        rows, chunk_inserts = self._build_changes(record, checkpoint, object_ids)
        deliveries, is_saved = checkpoint.deliveries, False
        # Taken when the transaction is queued: a reset that follows is saved after it.
        delivered_ids = () if deliveries is None else deliveries.take_unsaved()

        async def save_rows(tx: Transaction) -> bool:
            if locks:
                await tx.lock(*locks)
            if checkpoint.refuses_if_restored and await is_restored(tx):
                raise RestoreUncheckedError
            is_owned, *counts = await tx.execute_all(rows)
            # A write whose outcome is known must not be sent again.
            if not is_owned or (checkpoint.new_write is not None and not counts[0]):
                if checkpoint.refuses_if_frozen and await is_frozen(tx, record.tenant):
                    raise WritesFrozenError
                raise DuplicateOperationError if checkpoint.is_first else OwnershipLostError
            if delivered_ids:
                await _close_one_by_one(tx, delivered_ids, self._store.clock())
            if has_others:
                await self._object_states.apply_changes(tx, record.tenant, changes, is_long=is_long)
                await self._save_other_rows(tx, record, checkpoint, object_ids, chunk_inserts)
            return checkpoint.recipient_lock is not None and counts[-1] == 1

        has_chunks = bool(chunk_inserts) or checkpoint.has_chunks
        has_others = (
            has_chunks
            or bool(changes or checkpoint.new_aliases)
            or len(object_ids) > MAX_COMBINED_OBJECTS
            or any(write.is_claim for write in checkpoint.resolved_writes)
            or checkpoint.deletes_routing_marks
        )
        sizes = len(changes), len(checkpoint.new_aliases), len(object_ids)
        is_brief = max(sizes) <= FEW and not (
            has_chunks or is_long or checkpoint.deletes_routing_marks
        )
        # No statement but those of ``execute_all``.
        is_single = not (has_others or locks or checkpoint.refuses_if_restored)
        try:
            has_lock = await self._store.write(save_rows, is_brief=is_brief, is_single=is_single)
            is_saved = True
        finally:
            if deliveries is not None:
                deliveries.end_saving(delivered_ids, is_saved=is_saved)
        return has_lock

    def _list_lock_names(self, record: OperationRecord, checkpoint: Checkpoint) -> frozenset[str]:
        locks = self._object_states.list_lock_names(record.tenant, checkpoint.object_changes)
        # Two writes that look for their objects at the same time must not claim the same one.
        if any(write.is_claim for write in checkpoint.resolved_writes):
            locks |= {f"claims {record.tenant}"}
        return locks

    async def _save_other_rows(
        self,
        tx: Transaction,
        record: OperationRecord,
        checkpoint: Checkpoint,
        object_ids: Sequence[str],
        chunk_inserts: Sequence[chunks.InsertChunks],
    ) -> None:
        # After the fence: only the owner may claim.
        for write in checkpoint.resolved_writes:
            if write.is_claim:
                await self._check_object_not_claimed(tx, record, write)
        common = {"operation_id": record.id, **record.tenant._asdict()}
        if len(object_ids) > MAX_COMBINED_OBJECTS:
            object_rows = ({**common, "object_id": id_} for id_ in object_ids)
            await tx.execute(statements.INSERT_OBJECTS, *object_rows)
        if checkpoint.deletes_routing_marks:
            await tx.execute(statements.DELETE_ROUTING_MARKS, common)
        if checkpoint.drops_payload and checkpoint.has_chunks:
            await chunks.delete_chunks(tx, record.id)
        if aliases := checkpoint.new_aliases:
            await insert_legacy_ids(tx, record.tenant, aliases, self._store.clock())
        for insert_chunks in chunk_inserts:
            await insert_chunks(tx)

    def _build_changes(
        self, record: OperationRecord, checkpoint: Checkpoint, object_ids: Sequence[str]
    ) -> tuple[list[Change], list[chunks.InsertChunks]]:
        """Builds the changes of the operation, which checks the fence, and of the rows below it.

        The chunks of long texts are inserted after them.
        """
        common = {"operation_id": record.id, **record.tenant._asdict()}
        new_write, drops_payload = checkpoint.new_write, checkpoint.drops_payload
        chunk_inserts = list[chunks.InsertChunks]()
        build_change = self._build_insert if checkpoint.is_first else self._build_update
        changes = [build_change(record, checkpoint, common, chunk_inserts)]
        if new_write is not None:
            # Second, so that its count shows that it is new, or an attempt without effect.
            changes.append((statements.UPSERT_WRITE, common | structs.asdict(new_write)))
        if drops_payload and checkpoint.has_step_rows:
            changes.append((statements.DELETE_STEPS, common))
        elif not drops_payload and checkpoint.step_results is not None:
            number, text = checkpoint.step_results
            results = self._texts.encrypt(record, "results", text, chunk_inserts)
            steps = {**common, "number": number, "results": results}
            changes.append((statements.UPSERT_STEPS, steps))
        for write in checkpoint.resolved_writes:
            # PostgreSQL refuses to change a row twice in one statement.
            if new_write is None or write.number != new_write.number:
                changes += [(statements.UPDATE_WRITE, common | structs.asdict(write))]
        if len(object_ids) <= MAX_COMBINED_OBJECTS:
            for id_ in object_ids:
                changes += [(statements.INSERT_OBJECTS, {**common, "object_id": id_})]
        if action := checkpoint.audit_action:
            event_row = build_event_row(self._store, action, record.tenant, operation_id=record.id)
            changes.append((INSERT_AUDIT_EVENT, event_row))
        if checkpoint.recipient_lock is not None:
            lock = {
                "id": checkpoint.recipient_lock,
                "updated_at": self._store.clock(),
                "former_holder": checkpoint.former_lock_holder,
            }
            changes.append((statements.TAKE_RECIPIENT_LOCK, common | lock))
        return changes, chunk_inserts

    async def _check_object_not_claimed(
        self, tx: Transaction, record: OperationRecord, write: Write
    ) -> None:
        """Raises AlreadyClaimedError if another write created, or may be creating, the same object.

        A write that is recorded after this transaction is sent after it too, so it cannot have
        created an object that was found before.
        """
        found = {
            "operation_id": record.id,
            "object_id": write.object_id,
            "call_digest": write.call_digest,
        }
        values = {**record.tenant._asdict(), **found}
        if await tx.fetch(statements.SELECT_CLAIM_OF_OTHERS, values):
            raise AlreadyClaimedError
        # An identical write that is still in flight may be the one that created the object.
        rivals = await tx.fetch(statements.SELECT_RIVALS, values)
        if any(self._may_be_sending(id_, instance) for id_, instance in rivals):
            raise AlreadyClaimedError

    def _build_insert(
        self,
        record: OperationRecord,
        checkpoint: Checkpoint,
        common: Parameters,
        chunk_inserts: list[chunks.InsertChunks],
    ) -> Change:
        row = {**structs.asdict(record), **common}
        if record.request is not None:
            row["request"] = self._texts.encrypt(record, "request", record.request, chunk_inserts)
        if (unrelated_ids := checkpoint.unrelated_ids) is not None:
            row |= {"fingerprints": record.fingerprints, "unrelated_ids": list(unrelated_ids)}
        insert = statements.build_operation_insert(
            checkpoint.refuses_if_frozen, unrelated_ids is not None
        )
        return insert, row

    def _build_update(
        self,
        record: OperationRecord,
        checkpoint: Checkpoint,
        common: Parameters,
        chunk_inserts: list[chunks.InsertChunks],
    ) -> Change:
        # An update is needed even if nothing changes, because it checks the fence.
        values = dict(checkpoint.column_values) or {"fence": record.fence}
        if checkpoint.drops_payload:
            values["request"] = None
        if values.get("response") is not None:
            values["response"] = self._texts.encrypt(
                record, "response", values["response"], chunk_inserts
            )
        if values.get("state") not in (None, RUNNING, IN_DOUBT):
            values.setdefault("ended_at", self._store.compute_end_time())
        update = statements.build_fenced_update(
            tuple(sorted(values)), values.get("state"), checkpoint.refuses_if_frozen
        )
        # It changes no row, of this id, fence and state, only if another instance has taken over,
        # or during a freeze.
        return update, {**values, **common, "expected_fence": record.fence}


def _list_new_object_ids(record: OperationRecord, checkpoint: Checkpoint) -> list[str]:
    """Lists the objects that the operation names or created, and that have no row yet."""
    ids = {write.object_id for write in checkpoint.resolved_writes if write.object_id}
    for change in checkpoint.object_changes:
        ids.update(change.created_ids)
    if checkpoint.new_write is not None:
        ids.update(_PATH_IDS.findall(checkpoint.new_write.path))
    if checkpoint.is_first:
        ids.update(record.object_ids)
    else:
        ids.difference_update(record.object_ids)
    return sorted(ids)


async def _close_one_by_one(tx: Transaction, ids: Sequence[str], closed_at: datetime) -> None:
    # Most are alone: for a list, SQLite would build a table each time.
    statement, values = statements.CLOSE_ONE_WITHOUT_REQUEST, {"closed_at": closed_at}
    counts = await tx.execute_all([(statement, {**values, "operation_id": id_}) for id_ in ids])
    if sum(counts) != len(ids):
        await close_with_requests(tx, {**values, "ids": ids})


async def close_with_requests(tx: Transaction, parameters: Parameters) -> None:
    """Closes those of the operations that are still done, as they have a stored request."""
    rows = await tx.fetch(statements.SELECT_DONE, parameters)
    if done_ids := [id_ for (id_,) in rows]:
        await tx.execute(statements.CLOSE, {**parameters, "ids": done_ids})
        await tx.execute(statements.DELETE_STEPS, *({"operation_id": id_} for id_ in done_ids))
        await chunks.delete_chunks(tx, *done_ids)


async def is_frozen(tx: Transaction, tenant: Tenant) -> bool:
    # All of them, as there are few: SQLite would build tables for the alternatives of a condition.
    rows = await tx.fetch(statements.SELECT_FREEZES)
    return any(is_tenant_in_scope(Tenant(*row), tenant) for row in rows)


async def is_restored(tx: Transaction) -> bool:
    return bool(await tx.fetch_value(statements.SELECT_RESTORED))
