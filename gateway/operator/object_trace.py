"""Everything known about an id: other ids of the object, its records, and its history; also as text.

The id may be of an object, a request (``X-Request-Id``), an operation or a write.

The result contains no personal data: only facts that the gateway itself created are shown.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, or_, select

from gateway.observability.plurals import format_time
from gateway.operator.in_doubt_writes import format_write_id
from gateway.storage import ObjectStateStore, Store, Tenant
from gateway.storage.alias_ids import AliasIds
from gateway.storage.audit_log import AuditEvent, describe_scope, list_audit_events
from gateway.storage.database import Transaction
from gateway.storage.operation_records import OperationRecord, Write
from gateway.storage.operations import OperationRepository
from gateway.storage.state_tables import STATE_TABLES
from gateway.storage.tables import legacy_ids, operation_objects
from gateway.writes import states
from mappings.forwarded_writes import BATCH_DELETIONS
from mappings.provenance import FACT_LABELS

SHOWN_FACTS = {
    "batch": "phase version upstream abandoned elsewhere is_new imported since started currency "
    "createdAt updatedAt",
    "recipient": "status deleted still_there autoswitch holdup",
    "alias": "id batch abandoned gone started",
    "begun": "at",
}
"""The facts to show, by kind of object. None is personal data."""


ORIGINAL_ID = "the original id"
SERVICE_ID = "the service's id"
SUBMITTED_ID = "the service's id, created from a draft"
SUPERSEDED_ID = "the service's id, superseded: must never be started"


class KnownId(NamedTuple):
    """One id of an object, and what kind of id it is."""

    id: str
    what: str


@dataclass(frozen=True, slots=True)
class ObjectTrace:
    """Everything known about an object of one tenant. Operations and audit events are oldest first."""

    owner: Tenant
    known_ids: tuple[KnownId, ...]
    facts: Mapping[str, Mapping[str, Any]]
    """The gateway's records, by ``<kind> <id>``."""
    payments: int | None
    """Number of recorded payments if the object is a batch."""
    operations: Sequence[OperationRecord]
    writes: Mapping[str, Sequence[Write]]
    events: Sequence[AuditEvent]


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
    operation_id = _extract_operation_id(id_)
    records = await repository.list_by_request_or_operation_id(None, operation_id)
    return sorted(tenants | {record.tenant for record in records})


def _extract_operation_id(id_: str) -> str:
    """Extracts the operation id from an id of `writes unsettled`; returns other ids unchanged."""
    match = re.fullmatch(r"([0-9a-f]{12,})\.\d+", id_)
    return match[1] if match else id_


async def trace_object(store: Store, owner: Tenant, id_: str) -> ObjectTrace:
    """Collects everything known about an id of one tenant. Raises StoreUnavailable."""
    ledger = ObjectStateStore(store)
    known_ids = await _find_known_ids(store, ledger, owner, id_)
    object_ids = list(dict.fromkeys(name.id for name in known_ids))
    repository, operation_id = OperationRepository(store, ledger), _extract_operation_id(id_)
    operations = await repository.list_by_object(owner, object_ids)
    if requested := await repository.list_by_request_or_operation_id(owner, operation_id):
        known_ids = _list_known_ids_of_requests(requested)
        operations = sorted(
            {record.id: record for record in [*requested, *operations]}.values(),
            key=lambda record: (record.started_at, record.id),
        )
    # Payments are stored under one of the ids only.
    entries: Mapping[str, Any] = {}
    for object_id in object_ids:
        entries = entries or await ledger.load(owner, "payments", object_id)
    return ObjectTrace(
        owner,
        tuple(known_ids),
        await _load_shown_facts_by_object(ledger, owner, object_ids),
        len(entries["entries"]) if "entries" in entries else None,
        operations,
        await repository.load_writes(*(record.id for record in operations)),
        await _load_related_audit_events(store, owner, operations),
    )


def _list_known_ids_of_requests(records: Sequence[OperationRecord]) -> list[KnownId]:
    """Returns descriptions of the requests and for the objects that they concern."""
    known_ids = [KnownId(record.request_id, "a request") for record in records]
    known_ids += [
        KnownId(object_id, "named or created by that request")
        for record in records
        for object_id in record.object_ids
    ]
    return list(dict.fromkeys(known_ids))


async def _find_known_ids(
    store: Store, ledger: ObjectStateStore, owner: Tenant, id_: str
) -> list[KnownId]:
    """Returns every id of the object, found by following its known ids transitively."""
    known_ids: dict[KnownId, None] = {}
    pending, seen_ids = [id_], set[str]()
    # An edited batch has a chain of ids, one per submission: follow them in both directions.
    while pending:
        current_id = pending.pop()
        if current_id in seen_ids:
            continue
        seen_ids.add(current_id)
        related_ids = await _find_related_ids(store, ledger, owner, current_id)
        known_ids |= dict.fromkeys(related_ids)
        pending += [each.id for each in related_ids]
    for each in [*known_ids]:
        # The more specific description replaces the general one.
        if each.what in (SUBMITTED_ID, SUPERSEDED_ID):
            known_ids.pop(KnownId(each.id, SERVICE_ID), None)
    return list(known_ids) or [KnownId(id_, "the given id")]


async def _find_related_ids(
    store: Store, ledger: ObjectStateStore, owner: Tenant, id_: str
) -> list[KnownId]:
    """Returns the ids directly related to one id of the object."""
    is_id = or_(legacy_ids.c.legacy_id == id_, legacy_ids.c.current_id == id_)
    query = select(legacy_ids).filter_by(**owner._asdict()).where(is_id)
    known_ids: list[KnownId] = []
    aliases = AliasIds(store, "all")
    for row in await store.fetch(query):
        # Not the column: of an object that has an alias it says which id is shown.
        pair = {row.legacy_id: row.current_id}
        is_imported = bool(aliases.map_current_to_imported_legacy_ids(owner, pair))
        description = "the legacy id, imported" if is_imported else "the legacy id"
        known_ids += [KnownId(row.legacy_id, description), KnownId(row.current_id, SERVICE_ID)]
    alias = await ledger.load(owner, "alias", id_)
    if alias.get("id"):
        known_ids += [KnownId(id_, SUBMITTED_ID), KnownId(alias["id"], ORIGINAL_ID)]
    if alias.get("batch"):
        known_ids.append(KnownId(id_, f"a payment of batch {alias['batch']}"))
    if alias.get("abandoned"):
        known_ids.append(KnownId(id_, SUPERSEDED_ID))
        known_ids += [
            KnownId(batch_id, ORIGINAL_ID)
            for batch_id, facts in (await ledger.load_facts_by_id(owner, "batch")).items()
            if id_ in facts.get("abandoned", [])
        ]
    batch = await ledger.load(owner, "batch", id_)
    if (upstream := batch.get("upstream")) and upstream != id_:
        known_ids.append(KnownId(upstream, SUBMITTED_ID))
    return known_ids + [KnownId(each, SUPERSEDED_ID) for each in batch.get("abandoned", [])]


async def _load_shown_facts_by_object(
    ledger: ObjectStateStore, owner: Tenant, object_ids: Iterable[str]
) -> dict[str, dict[str, Any]]:
    facts_by_object: dict[str, dict[str, Any]] = {}
    for id_ in object_ids:
        for kind, names in SHOWN_FACTS.items():
            facts = await ledger.load(owner, kind, id_)
            if shown_facts := {
                name: facts[name] for name in names.split() if facts.get(name) is not None
            }:
                facts_by_object[f"{kind} {id_}"] = shown_facts
    return facts_by_object


async def _load_related_audit_events(
    store: Store, owner: Tenant, records: Sequence[OperationRecord]
) -> list[AuditEvent]:
    """Returns the audit events about these operations, and general events since the first of them."""
    operation_ids = {record.id for record in records}
    first_started_at = records[0].started_at if records else None

    def is_related(event: AuditEvent) -> bool:
        if event.operation_id is not None or first_started_at is None:
            return event.operation_id in operation_ids
        # General events, such as a freeze, can explain what happened to a request.
        return event.at >= first_started_at

    return [*filter(is_related, await list_audit_events(store, owner))]


EDIT_OPERATIONS = frozenset({"update_batch", "create_payment", "update_payment", "delete_payment"})
UNCHANGED_AT_SERVICE = "nothing was changed at the service"

STATE_WORDS = {
    states.IN_DOUBT: "in doubt",
    states.DONE: "finished, the client may not have the response",
    states.ANSWERED: "finished, the client has the response",
}
"""The database keeps the names of the first version, which say less."""


KIND_LABELS = {"alias": "the other id", "begun": "the forwarded batch"}
PHASE_LABELS = {"sent": "at the service", "making": "being created"}


def format_trace(object_trace: ObjectTrace) -> list[str]:
    lines = [f"{object_trace.owner}", ""]
    descriptions: dict[str, list[str]] = {}
    for id_, what in object_trace.known_ids:
        descriptions.setdefault(id_, []).append(what)
    lines += [f"  {id_}  {'; '.join(texts)}" for id_, texts in descriptions.items()]
    for object_name, facts in object_trace.facts.items():
        kind, _, id_ = object_name.partition(" ")
        values = ", ".join(
            f"{FACT_LABELS.get(name, name)} {_format_fact(name, value)}"
            for name, value in facts.items()
        )
        lines += ["", f"  record of {KIND_LABELS.get(kind, kind)} {id_}: {values}"]
    if object_trace.payments is not None:
        lines += [f"  payments on record: {object_trace.payments}"]
    # Requests and audit events in one chronological list.
    entries = [
        (record.started_at, _format_request(record, object_trace))
        for record in object_trace.operations
    ]
    for event in object_trace.events:
        head = f"{format_time(event.at)}  {event.actor} {event.action}"
        entries.append((event.at, [f"{head}: {describe_scope(event.scope)}"]))
    for _when, event_lines in sorted(entries, key=lambda entry: entry[0]):
        lines += ["", *event_lines]
    return lines


def _format_fact(name: str, value: Any) -> str:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, default=str)
    return PHASE_LABELS.get(value, value) if name == "phase" else str(value)


def _format_request(record: OperationRecord, object_trace: ObjectTrace) -> list[str]:
    head = f"{format_time(record.started_at)}  {record.operation}, key {record.key_name}, request {record.request_id}"
    record_writes = object_trace.writes[record.id]
    outcome = _describe_operation_state(record, record_writes)
    state = f"{outcome}: {record.reason}" if record.reason else outcome
    lines = []
    for write in record_writes:
        created = f", created {write.object_id}" if write.object_id else ""
        result = _format_outcome(write, record, object_trace.events)
        lines.append(f"{write.method} {write.path}  {result}{created}")
    lines += _explain_request_without_service_change(record, record_writes)
    return [f"{head}, {state}", *(f"    {line}" for line in lines)]


def _explain_request_without_service_change(
    record: OperationRecord, record_writes: Sequence[Write]
) -> list[str]:
    """Explains a completed request that changed nothing at the service: where its change is."""
    # NO_ENDPOINT: the service has no such endpoint, so the write had no effect there.
    has_effect = any(write.state != states.NO_ENDPOINT for write in record_writes)
    if record.state not in (states.DONE, states.ANSWERED) or has_effect:
        return []
    if record.operation in EDIT_OPERATIONS:
        return [f"{UNCHANGED_AT_SERVICE}: any change it made is in a draft of the gateway"]
    if record.operation in BATCH_DELETIONS and record_writes:
        return [f"{UNCHANGED_AT_SERVICE}: its batch is superseded, and the gateway never starts it"]
    return [UNCHANGED_AT_SERVICE]


def _describe_operation_state(record: OperationRecord, record_writes: Sequence[Write]) -> str:
    """Returns the state to show; of an undone request, whether any of its writes can have happened."""
    write_states = {write.state for write in record_writes}
    if record.state == states.UNDONE and not write_states & {states.ANSWERED, states.CONFIRMED}:
        return "may have happened" if states.MAY_EXIST in write_states else "did not happen"
    return STATE_WORDS.get(record.state, record.state)


def _format_outcome(write: Write, record: OperationRecord, events: Sequence[AuditEvent]) -> str:
    """Returns the outcome of a write and its source: an answer, a later read, or an operator."""
    seconds, verdict = measure_resolution_seconds(record, write), write.operator_outcome
    outcome = states.describe_write_state(write.state)
    # Those states come from a later read or from an operator, not from an answer.
    if write.state in (states.CONFIRMED, states.ABSENT, states.MAY_EXIST):
        if verdict and verdict in (write.state, write.object_id):
            return f"{outcome} (recorded by {_name_verdict_operators(write, record, events)})"
        timing = "" if seconds is None else f" (determined after {seconds:.0f} s)"
    else:
        outcome += f" {write.status}" if write.status else ""
        timing = "" if seconds is None else f" in {seconds} s"
    if verdict is None:
        return f"{outcome}{timing}"
    operators = _name_verdict_operators(write, record, events)
    return f"{outcome}{timing}, recorded by {operators}: {states.describe_write_state(verdict)}"


def _name_verdict_operators(
    write: Write, record: OperationRecord, events: Sequence[AuditEvent]
) -> str:
    verdict = write.operator_outcome or ""
    text = states.build_operator_outcome_audit_text(format_write_id(record, write), verdict)
    # Each name once, even if an operator recorded the outcome twice.
    names = {
        act.actor: None for act in events if (act.operation_id, act.action) == (record.id, text)
    }
    return ", ".join(names) or "an operator"


def measure_resolution_seconds(record: OperationRecord, write: Write) -> float | None:
    """Returns the seconds from the record of a write, before its commit, until its outcome was known.

    A write is recorded by the time of the service, so that it can be found there. If that is no time
    between the start of the request and the outcome, the clocks differ: then since the start.
    """
    if write.resolved_at is None:
        return None
    has_same_clock = record.started_at <= write.recorded_at <= write.resolved_at
    began_at = write.recorded_at if has_same_clock else record.started_at
    return round((write.resolved_at - began_at).total_seconds(), 3)
