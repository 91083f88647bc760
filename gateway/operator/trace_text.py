"""Everything known about an id as text, for the command `trace` and the console."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gateway.operator.in_doubt_writes import format_write_id
from gateway.operator.object_trace import ObjectTrace
from gateway.storage.audit_log import AuditEvent, describe_scope
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

EDIT_OPERATIONS = frozenset({"update_batch", "create_payment", "update_payment", "delete_payment"})
DELETE_OPERATIONS = frozenset({"delete_batch", "delete_batches"})
UNCHANGED_AT_SERVICE = "nothing was changed at the service"
CHANGE_IS_IN_DRAFT = "any change it made is in a draft of the gateway"
BATCH_IS_SUPERSEDED = "its batch is superseded, and the gateway never starts it"

STATE_WORDS = {
    IN_DOUBT: "in doubt",
    DONE: "finished, the client may not have the response",
    ANSWERED: "finished, the client has the response",
}
"""The database keeps the names of the first version, which say less."""


def format_trace(object_trace: ObjectTrace) -> list[str]:
    lines = [f"{object_trace.owner}", ""]
    descriptions: dict[str, list[str]] = {}
    for name in object_trace.known_ids:
        descriptions.setdefault(name.id, []).append(name.description)
    lines += [f"  {id_}  {'; '.join(texts)}" for id_, texts in descriptions.items()]
    for object_name, facts in object_trace.facts.items():
        values = ", ".join(f"{name} {_format_fact(value)}" for name, value in facts.items())
        lines += ["", f"  record of {object_name}: {values}"]
    if object_trace.payments is not None:
        lines += [f"  payments on record: {object_trace.payments}"]
    # Requests and audit events in one chronological list.
    entries = [
        (record.started_at, _format_request(record, object_trace))
        for record in object_trace.operations
    ]
    entries += [(act.at, [_format_event(act)]) for act in object_trace.events]
    for _when, event_lines in sorted(entries, key=lambda entry: entry[0]):
        lines += ["", *event_lines]
    return lines


def _format_fact(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list | bool) else str(value)


def _format_event(event: AuditEvent) -> str:
    return f"{format_time(event.at)}  {event.actor} {event.action}: {describe_scope(event.scope)}"


def _format_request(record: OperationRecord, object_trace: ObjectTrace) -> list[str]:
    head = f"{format_time(record.started_at)}  {record.operation}, key {record.key_name}, request {record.request_id}"
    record_writes = object_trace.writes[record.id]
    outcome = _describe_operation_state(record, record_writes)
    state = f"{outcome}: {record.reason}" if record.reason else outcome
    calls = [_format_call(write, record, object_trace.events) for write in record_writes]
    return [
        f"{head}, {state}",
        *(
            f"    {line}"
            for line in [*calls, *_explain_request_without_service_change(record, record_writes)]
        ),
    ]


def _explain_request_without_service_change(
    record: OperationRecord, record_writes: Sequence[Write]
) -> list[str]:
    """Explains a completed request that changed nothing at the service: where its change is."""
    # NO_ENDPOINT: the service has no such endpoint, so the write had no effect there.
    if record.state not in (DONE, ANSWERED) or any(
        write.state != NO_ENDPOINT for write in record_writes
    ):
        return []
    if record.operation in DELETE_OPERATIONS:
        return (
            [f"{UNCHANGED_AT_SERVICE}: {BATCH_IS_SUPERSEDED}"]
            if record_writes
            else [UNCHANGED_AT_SERVICE]
        )
    return [
        f"{UNCHANGED_AT_SERVICE}: {CHANGE_IS_IN_DRAFT}"
        if record.operation in EDIT_OPERATIONS
        else UNCHANGED_AT_SERVICE
    ]


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
    seconds = measure_resolution_seconds(write)
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


def measure_resolution_seconds(write: Write) -> float | None:
    """Returns the seconds from the record of a write until its outcome was known."""
    if write.resolved_at is None:
        return None
    return round((write.resolved_at - write.recorded_at).total_seconds(), 3)


def format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
