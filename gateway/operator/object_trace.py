"""Everything known about an id: other ids of the object, its records, and its history.

The id may be of an object, a request (``X-Request-Id``), an operation or a write.

The text contains no personal data: only facts that the gateway itself created are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, or_, select

from gateway.operator.in_doubt_writes import format_write_id
from gateway.storage import ObjectStateStore, Store, Tenant
from gateway.storage.audit_log import AuditEvent, describe_scope, list_audit_events
from gateway.storage.database import Transaction
from gateway.storage.operation_records import OperationRecord, Write
from gateway.storage.operation_states import (
    ABSENT,
    ANSWERED,
    CONFIRMED,
    DONE,
    IN_DOUBT,
    NO_ENDPOINT,
    UNDONE,
    build_operator_outcome_audit_text,
    describe_write_state,
)
from gateway.storage.operations import OperationRepository
from gateway.storage.state_tables import STATE_TABLES
from gateway.storage.tables import legacy_ids, operation_objects

SHOWN_FACTS: Mapping[str, tuple[str, ...]] = {
    "batch": (
        "phase",
        "version",
        "upstream",
        "abandoned",
        "elsewhere",
        "is_new",
        "imported",
        "since",
        "started",
        "currency",
        "createdAt",
        "updatedAt",
    ),
    "recipient": ("status", "deleted", "still_there", "autoswitch", "holdup"),
    "alias": ("id", "batch", "abandoned", "gone", "started"),
    "begun": ("at",),
}
"""The facts to show, by kind of object. None is personal data."""


ORIGINAL_ID = "the original id"
SERVICE_ID = "the service's id"
SUBMITTED_ID = "the service's id, created from a draft"
SUPERSEDED_ID = "the service's id, superseded: must never be started"
REQUEST_ID = "a request"
NAMED_BY_REQUEST = "named or created by that request"


async def find_object_tenants(store: Store, id_: str) -> list[Tenant]:
    """Returns the tenants that know an id. Two merchants may have objects with the same id."""
    queries: list[tuple[Table, ColumnElement[bool]]] = [
        (legacy_ids, or_(legacy_ids.c.legacy_id == id_, legacy_ids.c.current_id == id_)),
        *((state.table, state.table.c.id == id_) for state in STATE_TABLES.values()),
        (operation_objects, operation_objects.c.object_id == id_),
    ]

    async def load(tx: Transaction) -> set[Tenant]:
        return {
            Tenant(row.merchant, row.environment)
            for table, condition in queries
            for row in await tx.fetch(
                select(table.c.merchant, table.c.environment).where(condition).distinct()
            )
        }

    tenants = await store.read(load)
    # An id may be of a request or operation whose objects are not stored any more.
    repository = OperationRepository(store, ObjectStateStore(store))
    tenants |= {
        record.tenant
        for record in await repository.list_by_request_or_operation_id(
            None, _extract_operation_id(id_)
        )
    }
    return sorted(tenants)


def _extract_operation_id(id_: str) -> str:
    """Extracts the operation id from an id of `writes unsettled`; returns other ids unchanged."""
    match = re.fullmatch(r"([0-9a-f]{12,})\.\d+", id_)
    return match[1] if match else id_


async def trace_object(store: Store, owner: Tenant, id_: str) -> list[str]:
    """Returns lines about everything known of an id of one tenant; raises StoreUnavailable."""
    ledger = ObjectStateStore(store)
    known_ids: Mapping[str, Iterable[str]] = await _find_known_ids(store, ledger, owner, id_)
    object_ids = list(known_ids)
    repository = OperationRepository(store, ledger)
    operations = await repository.list_by_object(owner, object_ids)
    if requested := await repository.list_by_request_or_operation_id(
        owner, _extract_operation_id(id_)
    ):
        known_ids = {record.request_id: [REQUEST_ID] for record in requested} | {
            object_: [NAMED_BY_REQUEST] for record in requested for object_ in record.object_ids
        }
        operations = list({record.id: record for record in [*requested, *operations]}.values())
    writes = await repository.load_writes(*(record.id for record in operations))
    events = await _load_related_audit_events(store, owner, operations)
    lines = [f"{owner}", "", *(f"  {each}  {'; '.join(known_ids[each])}" for each in known_ids)]
    lines += await _format_records(ledger, owner, object_ids)
    # Requests and audit events in one chronological list.
    entries = [
        (record.started_at, _format_request(record, writes[record.id], events))
        for record in operations
    ]
    entries += [(event.at, [_format_event(event)]) for event in events]
    entries.sort(key=lambda entry: entry[0])
    return lines + [line for _when, texts in entries for line in ("", *texts)]


async def _format_records(
    ledger: ObjectStateStore, owner: Tenant, object_ids: Iterable[str]
) -> list[str]:
    lines: list[str] = []
    payment_count: int | None = None
    for id_ in object_ids:
        for kind, names in SHOWN_FACTS.items():
            facts = await ledger.load(owner, kind, id_)
            if shown := [name for name in names if facts.get(name) is not None]:
                values = ", ".join(f"{name} {_format_fact(facts[name])}" for name in shown)
                lines += ["", f"  record of {kind} {id_}: {values}"]
        # Payments are stored under one of the ids only.
        if payment_count is None:
            payments = await ledger.load(owner, "payments", id_)
            payment_count = len(payments["entries"]) if "entries" in payments else None
    return lines if payment_count is None else [*lines, f"  payments on record: {payment_count}"]


async def _find_known_ids(
    store: Store, ledger: ObjectStateStore, owner: Tenant, id_: str
) -> dict[str, dict[str, None]]:
    """Returns every id of the object, with its descriptions; follows its known ids transitively."""
    known_ids: dict[str, dict[str, None]] = {}
    pending, seen_ids = [id_], set[str]()
    # An edited batch has a chain of ids, one per submission: follow them in both directions.
    while pending:
        if (current_id := pending.pop()) in seen_ids:
            continue
        seen_ids.add(current_id)
        for found_id, description in await _find_related_ids(store, ledger, owner, current_id):
            known_ids.setdefault(found_id, {})[description] = None
            pending.append(found_id)
    for descriptions in known_ids.values():
        # The more specific description replaces the general one.
        if not descriptions.keys().isdisjoint((SUBMITTED_ID, SUPERSEDED_ID)):
            descriptions.pop(SERVICE_ID, None)
    return known_ids or {id_: {"the given id": None}}


async def _find_related_ids(
    store: Store, ledger: ObjectStateStore, owner: Tenant, id_: str
) -> list[tuple[str, str]]:
    """Returns the ids directly related to one id of the object, each with a description."""
    known_ids = await _load_legacy_and_service_ids(store, owner, id_)
    alias = await ledger.load(owner, "alias", id_)
    if alias.get("id"):
        known_ids += [(id_, SUBMITTED_ID), (alias["id"], ORIGINAL_ID)]
    if alias.get("batch"):
        known_ids.append((id_, f"a payment of batch {alias['batch']}"))
    if alias.get("abandoned"):
        superseding_batches = await _find_superseding_batches(ledger, owner, id_)
        known_ids += [(id_, SUPERSEDED_ID), *((each, ORIGINAL_ID) for each in superseding_batches)]
    batch = await ledger.load(owner, "batch", id_)
    if (upstream := batch.get("upstream")) and upstream != id_:
        known_ids.append((upstream, SUBMITTED_ID))
    return [*known_ids, *((each, SUPERSEDED_ID) for each in batch.get("abandoned", []))]


async def _load_legacy_and_service_ids(
    store: Store, owner: Tenant, id_: str
) -> list[tuple[str, str]]:
    is_id = or_(legacy_ids.c.legacy_id == id_, legacy_ids.c.current_id == id_)
    query = select(legacy_ids).filter_by(**owner._asdict()).where(is_id)
    known_ids: list[tuple[str, str]] = []
    for row in await store.read(lambda tx: tx.fetch(query)):
        description = "the legacy id, imported" if row.imported else "the legacy id"
        known_ids += [(row.legacy_id, description), (row.current_id, SERVICE_ID)]
    return known_ids


async def _find_superseding_batches(
    ledger: ObjectStateStore, owner: Tenant, upstream: str
) -> list[str]:
    """Returns the batches that superseded this batch of the service."""
    batches = await ledger.load_facts_by_id(owner, "batch")
    return [id_ for id_, facts in batches.items() if upstream in facts.get("abandoned", [])]


async def _load_related_audit_events(
    store: Store, owner: Tenant, records: Sequence[OperationRecord]
) -> list[AuditEvent]:
    """Returns the audit events about these operations, and general events since the first of them."""
    operation_ids = {record.id for record in records}
    first_started_at = min((record.started_at for record in records), default=None)
    return [
        event
        for event in await list_audit_events(store, owner)
        if event.operation_id in operation_ids
        or (
            # General events, such as a freeze, can explain what happened to a request.
            event.operation_id is None
            and first_started_at is not None
            and event.at >= first_started_at
        )
    ]


EDIT_OPERATIONS = frozenset({"update_batch", "create_payment", "update_payment", "delete_payment"})
DELETE_OPERATIONS = frozenset({"delete_batch", "delete_batches"})

STATE_WORDS = {
    IN_DOUBT: "in doubt",
    DONE: "finished, the client may not have the response",
    ANSWERED: "finished, the client has the response",
}
"""The database keeps the names of the first version, which say less."""


def _format_fact(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list | bool) else str(value)


def _format_event(event: AuditEvent) -> str:
    return f"{format_time(event.at)}  {event.actor} {event.action}: {describe_scope(event.scope)}"


def _format_request(
    record: OperationRecord, writes: Sequence[Write], events: Sequence[AuditEvent]
) -> list[str]:
    head = f"{format_time(record.started_at)}  {record.operation}, key {record.key_name}, request {record.request_id}"
    outcome = _describe_operation_state(record, writes)
    state = f"{outcome}: {record.reason}" if record.reason else outcome
    details = [
        *(_format_call(write, record, events) for write in writes),
        *_explain_request_without_service_change(record, writes),
    ]
    return [f"{head}, {state}", *(f"    {line}" for line in details)]


def _explain_request_without_service_change(
    record: OperationRecord, record_writes: Sequence[Write]
) -> list[str]:
    """Explains a completed request that changed nothing at the service: where its change is."""
    # NO_ENDPOINT: the service has no such endpoint, so the write had no effect there.
    if record.state not in (DONE, ANSWERED) or any(
        write.state != NO_ENDPOINT for write in record_writes
    ):
        return []
    place = ""
    if record.operation in DELETE_OPERATIONS and record_writes:
        place = ": its batch is superseded, and the gateway never starts it"
    elif record.operation in EDIT_OPERATIONS:
        place = ": any change it made is in a draft of the gateway"
    return [f"nothing was changed at the service{place}"]


def _describe_operation_state(record: OperationRecord, record_writes: Sequence[Write]) -> str:
    """Returns the state to show: `did not happen` for an undone request without any write."""
    if record.state == UNDONE and not any(
        write.state in (ANSWERED, CONFIRMED) for write in record_writes
    ):
        return "did not happen"
    return STATE_WORDS.get(record.state, record.state)


def _format_call(write: Write, record: OperationRecord, events: Sequence[AuditEvent]) -> str:
    created = f", created {write.object_id}" if write.object_id else ""
    return f"{write.method} {write.path}  {_format_outcome(write, record, events)}{created}"


def _format_outcome(write: Write, record: OperationRecord, events: Sequence[AuditEvent]) -> str:
    """Returns the outcome of a write and its source: an answer, a later read, or an operator."""
    seconds = (
        None
        if write.resolved_at is None
        else round((write.resolved_at - write.recorded_at).total_seconds(), 3)
    )
    # Those two states come from a later read or from an operator, not from an answer.
    if write.state not in (CONFIRMED, ABSENT):
        state = describe_write_state(write.state)
        outcome = f"{state} {write.status}" if write.status else state
        took = f" in {seconds} s" if seconds is not None else ""
        return f"{outcome}{took}{_format_verdict(write, record, events)}"
    outcome = describe_write_state(write.state)
    if (
        write.operator_outcome in (write.state, write.object_id)
        and write.operator_outcome is not None
    ):
        return f"{outcome} (recorded by {_format_verdict_operators(write, record, events)})"
    delay = f" (determined after {seconds:.0f} s)" if seconds is not None else ""
    return f"{outcome}{delay}{_format_verdict(write, record, events)}"


def _format_verdict(write: Write, record: OperationRecord, events: Sequence[AuditEvent]) -> str:
    """Returns an operator's verdict that the outcome does not show: it differs or is open."""
    if write.operator_outcome is None:
        return ""
    return f", recorded by {_format_verdict_operators(write, record, events)}: {describe_write_state(write.operator_outcome)}"


def _format_verdict_operators(
    write: Write, record: OperationRecord, events: Sequence[AuditEvent]
) -> str:
    verdict = write.operator_outcome or ""
    # Earlier versions used the second form.
    messages = (
        build_operator_outcome_audit_text(format_write_id(record, write), verdict),
        f"told: {describe_write_state(verdict)}",
    )
    operators = [
        act.actor for act in events if act.operation_id == record.id and act.action in messages
    ]
    # Each name once, even if an operator recorded the outcome twice.
    return ", ".join(dict.fromkeys(operators)) or "an operator"


def format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
