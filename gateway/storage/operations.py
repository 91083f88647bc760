"""Loads and saves operations; ``operation_records`` describes them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from msgspec import structs
from sqlalchemy import ColumnElement, and_, exists, or_, select, update

from gateway.payloads import stored_json
from gateway.payloads.stored_json import StoredText
from gateway.storage import checkpoints, chunks
from gateway.storage import operation_statements as statements
from gateway.storage.audit_log import record_audit_event
from gateway.storage.database import FEW, Transaction
from gateway.storage.object_state import ObjectStateStore
from gateway.storage.operation_records import OperationRecord, OperatorOutcomes, Write
from gateway.storage.operation_texts import OperationTexts
from gateway.storage.sql import AnyOf, Parameters, Statement
from gateway.storage.store import Store
from gateway.storage.tables import operation_objects, operation_steps, operations, upstream_writes
from gateway.storage.tenants import Tenant
from gateway.writes import states


class OperationRepository(checkpoints.CheckpointWriter):
    """Reads and writes the journal; every method raises StoreUnavailable."""

    def __init__(
        self,
        store: Store,
        object_states: ObjectStateStore,
        may_be_sending: Callable[[str, str], bool] = lambda _operation_id, _instance: True,
    ) -> None:
        super().__init__(store, object_states, OperationTexts(store), may_be_sending)

    async def is_frozen(self, tenant: Tenant) -> bool:
        """Whether a tenant's writes are frozen; an empty merchant matches the widest freezes."""
        return await self._store.read(lambda tx: checkpoints.is_frozen(tx, tenant), is_brief=True)

    async def is_restore_unchecked(self) -> bool:
        """Whether the database was restored and not reconciled, so that nothing may be started."""
        return await self._store.read(checkpoints.is_restored, is_brief=True)

    async def take_over(self, record: OperationRecord, instance: str) -> OperationRecord | None:
        """Takes an open operation over; None if its row has changed since ``record`` was read."""
        # By the fence, because only one of several that try may get the operation. By the state,
        # because an owner that was taken for dead may have ended it since, and deleted the steps
        # that a replay needs.
        is_unchanged = and_(
            operations.c.id == record.id,
            operations.c.fence == record.fence,
            operations.c.state == record.state,
            operations.c.state.in_(
                states.list_source_states(states.OPERATION_TRANSITIONS, states.RUNNING)
            ),
        )
        new_values = {"fence": record.fence + 1, "instance": instance, "state": states.RUNNING}
        statement = update(operations).where(is_unchanged).values(**new_values)
        if await self._store.execute(statement) != 1:
            return None
        return structs.replace(
            record, fence=record.fence + 1, instance=instance, state=states.RUNNING
        )

    async def mark_answered(self, ids: Sequence[str], closed_at: datetime | None = None) -> None:
        """Closes operations whose clients have the responses, and deletes all texts but those.

        Operations in other states than ``done`` stay: one that was taken over needs its texts.
        """
        if not ids:
            return
        parameters = {"ids": sorted(ids), "closed_at": closed_at or self._store.clock()}
        # Nearly all have a stored response, and so lost their other texts when they were done.
        if await self._store.execute(statements.CLOSE_WITHOUT_REQUEST, parameters) != len(ids):
            await self._store.write(lambda tx: checkpoints.close_with_requests(tx, parameters))

    async def reopen(self, id_: str) -> None:
        """Reopens an operation whose response was not read, so that the same request is a retry."""
        values = {"operation_id": id_}
        await self._store.execute(statements.REOPEN_OPERATION, values)

    async def record_replay(self, id_: str, instance: str) -> None:
        """Sets the end of an operation to now, when an instance is about to send its response."""
        ended_at = self._store.compute_end_time()
        values = {"operation_id": id_, "ended_at": ended_at, "instance": instance}
        await self._store.write(
            lambda tx: tx.execute(statements.RECORD_REPLAY, values), is_brief=True, is_single=True
        )

    async def mark_client_disconnected(self, id_: str) -> None:
        statement = (
            update(operations).where(operations.c.id == id_).values(is_client_disconnected=True)
        )
        await self._store.execute(statement)

    async def add_idempotency_key(self, record: OperationRecord, key_digest: str) -> None:
        """Gives an operation an Idempotency-Key, unless it has one, or another has this one.

        One of which nothing happened leaves the key to its retry.
        """
        other = operations.alias()
        has_other = exists().where(
            other.c.key_id == record.key_id, other.c.idempotency == key_digest
        )
        is_own = and_(operations.c.id == record.id, operations.c.state != states.UNDONE)
        is_free = and_(is_own, operations.c.idempotency.is_(None), ~has_other)
        add_key = update(operations).where(is_free).values(idempotency=key_digest)
        await self._store.execute(add_key)

    async def add_response(self, record: OperationRecord, response: StoredText) -> None:
        """Stores the response of an operation that has none, for the next requests with its key."""
        is_unanswered = and_(operations.c.id == record.id, operations.c.response.is_(None))
        chunk_inserts = list[chunks.InsertChunks]()
        text = self._texts.encrypt(record, "response", response, chunk_inserts)
        statement = update(operations).where(is_unanswered).values(response=text)

        async def store_response(tx: Transaction) -> None:
            if await tx.execute(statement):
                for insert_chunks in chunk_inserts:
                    await insert_chunks(tx)

        await self._store.write(store_response)

    # Reading

    async def list_related_open(self, record: OperationRecord) -> list[OperationRecord]:
        """Lists the operations that matter to a new one.

        They are open ones with the same request, unfinished ones that name one of its objects, and
        its own first attempt. The results lack their requests (see ``load_request``), name only the
        objects that ``record`` names too, and have responses only if these may be sent again.
        """
        values = {
            **record.tenant._asdict(),
            "key_id": record.key_id,
            "idempotency": record.idempotency,
            "repeats_since": record.repeats_since,
            "object_id": next(iter(record.object_ids), ""),
            "objects": record.object_ids,
        }
        is_brief = len(record.object_ids) <= FEW
        parameters = [{**values, "fingerprint": each} for each in record.fingerprints]
        if len(record.object_ids) <= 1:
            found = await self._fetch_each(statements.SELECT_RELATED_BY_ONE_OBJECT, parameters)
        else:
            found = await self._store.read(
                lambda tx: tx.fetch(statements.SELECT_RELATED, *parameters), is_brief=is_brief
            )
        rows = sorted({row.id: row for row in found}.values(), key=_get_start)
        object_rows: Sequence[Any] = ()
        if rows and record.object_ids:
            operation_ids = {**values, "operation_ids": [row.id for row in rows]}
            object_rows = await self._store.read(
                lambda tx: tx.fetch(statements.SELECT_BY_OBJECT, operation_ids), is_brief=is_brief
            )
        object_ids = _group_object_ids(object_rows)
        return [await self._decrypt_record_response(_parse_record(row, object_ids)) for row in rows]

    async def _fetch_each(
        self, statement: Statement, parameter_sets: Iterable[Parameters]
    ) -> list[Any]:
        """Fetches the rows for each set of parameters, of which there is nearly always one."""
        rows: list[Any] = []
        for parameters in parameter_sets:
            # There are nearly always none, which SQLite tells at once.
            if self._store.database.fetch_now(statement, parameters) != []:
                rows += await self._store.fetch_by_key(statement, parameters)
        return rows

    async def list_delivering_instances(
        self, record: OperationRecord, since: datetime
    ) -> list[str]:
        """Lists other instances that deliver the response to an identical request, or did recently.

        ``since`` is the earliest end of an operation whose delivery counts as recent.
        """
        common = {
            **record.tenant._asdict(),
            "key_id": record.key_id,
            "instance": record.instance,
            "since": since,
        }
        values = [{**common, "fingerprint": each} for each in record.fingerprints]
        rows = await self._fetch_each(statements.SELECT_DELIVERING_INSTANCES, values)
        # Two different Idempotency-Keys mean two requests.
        return [row.instance for row in rows if None in (row.idempotency, record.idempotency)]

    async def _decrypt_record_response(self, record: OperationRecord) -> OperationRecord:
        """Decrypts the response of a record that was built from its row."""
        if record.response is None:
            return record
        answer = await self._texts.decrypt(record, "response", record.response)
        return structs.replace(record, response=answer)

    async def load_request(self, record: OperationRecord) -> StoredText | None:
        """Loads the request; None if it was deleted because it is no longer needed."""
        if record.request is not None:
            return record.request
        query = select(operations.c.request).where(operations.c.id == record.id)
        encrypted = await self._store.read(lambda tx: tx.fetch_value(query))
        return await self._texts.decrypt(record, "request", encrypted)

    async def list_unfinished(self) -> list[OperationRecord]:
        """Lists every operation that is running somewhere, or in doubt."""
        return await self._list_operations_where(statements.UNFINISHED)

    async def list_unfinished_without_requests(self) -> list[OperationRecord]:
        """Like ``list_unfinished``, but without requests and object ids."""
        rows = await self._store.fetch(statements.SELECT_UNFINISHED)
        return [await self._decrypt_record_response(_parse_record(row, {})) for row in rows]

    async def is_any_unfinished(self, tenant: Tenant, operation: str) -> bool:
        """Whether a request of this operation is executed or in doubt."""
        query = select(operations.c.id).where(
            _build_tenant_condition(operations, tenant),
            statements.UNFINISHED,
            operations.c.operation == operation,
        )
        return bool(await self._store.fetch(query.limit(1)))

    async def list_by_object(
        self, tenant: Tenant | None, ids: Iterable[str]
    ) -> list[OperationRecord]:
        """Lists every operation that names or created one of some objects, oldest first."""
        operation_ids = select(operation_objects.c.operation_id).where(
            operation_objects.c.object_id.in_(list(ids)),
            *(() if tenant is None else (_build_tenant_condition(operation_objects, tenant),)),
        )
        return await self._list_operations_where(operations.c.id.in_(operation_ids))

    async def list_by_request_or_operation_id(
        self, tenant: Tenant | None, id_: str
    ) -> list[OperationRecord]:
        """Lists operations by request id, which a client may use twice, or by id prefix."""
        condition = operations.c.request_id == id_
        # A shorter prefix might match other operations by chance.
        if re.fullmatch(r"[0-9a-f]{12,}", id_):
            condition = or_(condition, operations.c.id.startswith(id_))
        if tenant is not None:
            condition = and_(condition, _build_tenant_condition(operations, tenant))
        return await self._list_operations_where(condition)

    async def find_operation(self, id_: str) -> OperationRecord | None:
        records = await self._list_operations_where(operations.c.id == id_)
        return records[0] if records else None

    async def list_by_id_prefix(self, prefix: str) -> list[OperationRecord]:
        return await self._list_operations_where(
            operations.c.id.startswith(prefix, autoescape=True)
        )

    async def _list_operations_where(self, condition: ColumnElement[bool]) -> list[OperationRecord]:
        columns = [operations.c[name] for name in (*statements.SUMMARY_COLUMNS, "request")]
        query = select(*columns).where(condition).order_by(operations.c.started_at, operations.c.id)

        async def load(tx: Transaction) -> tuple[Sequence[Any], Sequence[Any]]:
            rows = await tx.fetch(query)
            ids = [row.id for row in rows]
            return rows, await tx.fetch(_SUBJECTS_QUERY, {"ids": ids}) if ids else ()

        rows, object_rows = await self._store.read(load)
        object_ids = _group_object_ids([(row.operation_id, row.object_id) for row in object_rows])
        records = [
            await self._decrypt_record_response(_parse_record(row, object_ids)) for row in rows
        ]
        return [
            structs.replace(
                record, request=await self._texts.decrypt(record, "request", record.request)
            )
            for record in records
        ]

    async def load_step_results(self, record: OperationRecord) -> list[StoredText]:
        """Loads the results of the steps, a text for each checkpoint, in order."""
        is_own = operation_steps.c.operation_id == record.id
        query = select(operation_steps).where(is_own).order_by(operation_steps.c.number)
        rows = await self._store.fetch(query)
        texts = [await self._texts.decrypt(record, "results", row.results) for row in rows]
        return [text for text in texts if text is not None]

    async def load_writes(self, *ids: str) -> dict[str, list[Write]]:
        """Loads the writes of operations, by operation id, in order."""
        writes_by_id: dict[str, list[Write]] = {id_: [] for id_ in ids}
        values = {"ids": sorted(writes_by_id)}
        rows = await self._store.fetch(_WRITES_QUERY, values) if ids else ()
        for row in rows:
            operation_id, *columns = row
            writes_by_id[operation_id].append(Write(*columns))
        return writes_by_id

    async def load_object_ids_created_by_others(
        self, record: OperationRecord, since: datetime
    ) -> set[str]:
        """Loads the ids of objects that other operations of the tenant have created since then."""
        query = select(upstream_writes.c.object_id).where(
            _build_tenant_condition(upstream_writes, record.tenant),
            upstream_writes.c.recorded_at >= since,
            upstream_writes.c.object_id.is_not(None),
            upstream_writes.c.operation_id != record.id,
        )
        return {row.object_id for row in await self._store.fetch(query)}

    async def is_overwritten(
        self, record: OperationRecord, object_id: str, names: Iterable[str], named: Iterable[str]
    ) -> bool:
        """Whether an operation of these names has changed the object since, or one that it created.

        Those are the objects that its request does not name; ``named`` are the ids that it names.
        """
        values = {**record.tenant._asdict(), "operation_id": record.id, "object_id": object_id}
        values |= {"names": tuple(sorted(names)), "fingerprint": record.fingerprint}
        values["named_ids"] = tuple(sorted(named))
        values["is_of_created_batch"] = "delete_batch" in names
        values["since"] = record.ended_at or record.started_at
        for row in await self._store.fetch(statements.SELECT_OVERWRITING, values):
            if row.idempotency is None or not await self._is_refused(row.id):
                return True
        # Of a batch, it need not have changed what the operation has set.
        is_recipient = "update_recipient" in names
        return is_recipient and bool(
            await self._store.fetch(statements.SELECT_SIGNED_CHANGE, values)
        )

    async def _is_refused(self, id_: str) -> bool:
        """Whether an operation with an Idempotency-Key, which keeps its response, was refused."""
        response = record.response if (record := await self.find_operation(id_)) else None
        return response is not None and stored_json.decompress_text(response).startswith("[4")

    async def is_object_created_by_other_operation(
        self, record: OperationRecord, made: str
    ) -> bool:
        """Whether a write of another operation of the tenant created this object."""
        values = {**record.tenant._asdict(), "operation_id": record.id, "object_id": made}
        return bool(await self._store.fetch(statements.SELECT_CLAIM_OF_OTHERS, values))

    async def list_open_with_identical_write(
        self, record: OperationRecord, write: Write
    ) -> list[OperationRecord]:
        """Lists the other unfinished operations with an identical write that is unresolved."""
        return await self._list_operations_where(
            and_(
                _build_tenant_condition(operations, record.tenant),
                statements.UNFINISHED,
                operations.c.id != record.id,
                exists().where(
                    upstream_writes.c.operation_id == operations.c.id,
                    upstream_writes.c.call_digest == write.call_digest,
                    statements.IS_SENT_WRITE,
                ),
            )
        )

    async def record_operator_outcome(
        self, record: OperationRecord, number: int, outcome: str, write_name: str
    ) -> bool:
        """Records an outcome that an operator found out; False if the write is resolved already.

        The reconciler applies it in its next sweep.
        """
        is_unresolved = and_(
            upstream_writes.c.operation_id == record.id,
            upstream_writes.c.number == number,
            upstream_writes.c.state == states.SENT,
        )
        statement = update(upstream_writes).where(is_unresolved).values(operator_outcome=outcome)
        action = states.build_operator_outcome_audit_text(write_name, outcome)

        async def save_outcome(tx: Transaction) -> bool:
            if await tx.execute(statement) != 1:
                return False
            await record_audit_event(self._store, tx, action, record.tenant, operation_id=record.id)
            return True

        return await self._store.write(save_outcome)

    async def reopen_confirmed_by_operator(
        self,
        record: OperationRecord,
        write: Write,
        outcome: str | None = None,
        write_name: str = "",
        *,
        reason: str | None = None,
    ) -> bool:
        """Puts a forwarded write in doubt again whose outcome an operator got wrong.

        ``outcome`` is the corrected one, which the reconciler applies in its next sweep. False if
        the client has an answer by now, or another process has changed the operation.
        """
        is_unchanged = and_(
            operations.c.id == record.id, operations.c.fence == record.fence, statements.IS_DONE
        )
        reopen = (
            update(operations)
            .where(is_unchanged)
            .values(state=states.IN_DOUBT, reason=reason, response=None, ended_at=None)
        )
        withdraw = (
            update(upstream_writes)
            .where(
                upstream_writes.c.operation_id == record.id,
                upstream_writes.c.number == write.number,
                upstream_writes.c.state == states.CONFIRMED,
            )
            .values(state=states.SENT, object_id=None, resolved_at=None, operator_outcome=outcome)
        )

        async def reopen_operation(tx: Transaction) -> bool:
            if await tx.execute(reopen) != 1:
                return False
            await tx.execute(withdraw)
            # The recorded result of the write is the wrong one.
            await tx.execute(statements.DELETE_STEPS, {"operation_id": record.id})
            if outcome is not None:
                action = states.build_operator_outcome_audit_text(write_name, outcome)
                await record_audit_event(
                    self._store, tx, action, record.tenant, operation_id=record.id
                )
            return True

        return await self._store.write(reopen_operation)

    async def load_operator_outcomes(self, ids: Sequence[str]) -> dict[str, OperatorOutcomes]:
        """Loads the outcomes that operators recorded, by operation id."""
        outcomes: dict[str, OperatorOutcomes] = {}
        query, values = _OPERATOR_OUTCOMES_QUERY, {"ids": list(ids)}
        for row in await self._store.fetch(query, values) if ids else ():
            earlier = outcomes.get(row.operation_id, ())
            outcomes[row.operation_id] = (*earlier, (row.number, row.operator_outcome))
        return outcomes

    async def close_expired_operations(self, before: datetime) -> None:
        """Closes those that began ``before`` and are done: no client will ask for them again."""
        done = select(operations.c.id).where(
            operations.c.started_at < before, statements.IS_OPEN_OPERATION, statements.IS_DONE
        )
        rows = await self._store.fetch(done)
        # Not now, or with ``replay_seconds`` an identical request would seem to come soon after.
        await self.mark_answered([row.id for row in rows], closed_at=before)


_get_start = attrgetter("started_at", "id")
_SUBJECTS_QUERY = Statement(
    select(operation_objects).where(AnyOf(operation_objects.c.operation_id, "ids"))
)
_WRITES = (
    select(
        upstream_writes.c.operation_id,
        *(upstream_writes.c[name] for name in Write.__struct_fields__),
    )
    .where(AnyOf(upstream_writes.c.operation_id, "ids"))
    .order_by(upstream_writes.c.number)
)
_WRITES_QUERY = Statement(_WRITES)
_OPERATOR_OUTCOMES_QUERY = Statement(_WRITES.where(upstream_writes.c.operator_outcome.is_not(None)))


def _group_object_ids(rows: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Groups pairs of operation id and object id by operation id."""
    object_ids: dict[str, tuple[str, ...]] = {}
    for operation_id, object_id in rows:
        object_ids[operation_id] = (*object_ids.get(operation_id, ()), object_id)
    return object_ids


def _parse_record(row: Any, object_ids: Mapping[str, tuple[str, ...]]) -> OperationRecord:
    values = row._asdict()
    tenant = Tenant(values.pop("merchant"), values.pop("environment"))
    return OperationRecord(tenant=tenant, object_ids=object_ids.get(row.id, ()), **values)


def _build_tenant_condition(table: Any, tenant: Tenant) -> ColumnElement[bool]:
    return and_(table.c.merchant == tenant.merchant, table.c.environment == tenant.environment)
