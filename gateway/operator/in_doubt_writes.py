"""Lists writes in doubt with advice for operators, and records an operator's verdict."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gateway.observability.plurals import pluralize
from gateway.operator import ActionRefused
from gateway.payloads import stored_json
from gateway.storage import ObjectStateStore, Store
from gateway.storage.id_rows import load_current_ids_by_legacy_id, load_legacy_ids
from gateway.storage.operation_records import OPERATOR_OUTCOMES, OperationRecord, Write
from gateway.storage.operations import OperationRepository
from gateway.storage.tenants import Tenant
from gateway.upstream.service_problems import REFUSAL
from gateway.writes import states
from gateway.writes.step_records import FLOW_CHANGED_REASON
from mappings.current import ID_PATTERN, Endpoint, find_documented_endpoint
from mappings.signed_writes import CHANGE

RECONCILIATION_ADVICE = (
    "the gateway looks for its outcome. If it is still listed after two minutes,"
)

SIGNED_CHANGE_ADVICE = (
    "nothing: its client, who signed it, looks for it. The gateway keeps edits of the batch waiting "
    "until it can no longer be carried out, about 40 s after it was sent"
)

ID_CHARACTERS = 12
"""Characters of an operation's id that identify it."""

SURE_AFTER_AGE = timedelta(seconds=35)
"""A write that cannot be seen after this time did not happen, because the service refuses requests
that were signed more than 30 seconds ago (current interface, section 5)."""


@dataclass(frozen=True, slots=True)
class WriteInDoubt:
    """A write that was not answered, or the last write of an operation that cannot continue.

    ``object`` is the legacy id of the object that it changes, None for a create.
    """

    record: OperationRecord
    write: Write
    object: str | None
    to_do: str

    @property
    def id(self) -> str:
        return format_write_id(self.record, self.write)

    @property
    def reason(self) -> str:
        return self.record.reason or "the process that sent it ended before the answer came"

    @property
    def operator_outcome_text(self) -> str | None:
        """The outcome that an operator recorded, in words; None if none is recorded."""
        outcome = self.write.operator_outcome
        return describe_operator_outcome(outcome) if outcome else None


def describe_operator_outcome(outcome: str) -> str:
    if outcome in OPERATOR_OUTCOMES:
        return states.describe_write_state(outcome)
    return f"made {outcome}"


def format_write_id(record: OperationRecord, write: Write) -> str:
    return f"{record.id[:ID_CHARACTERS]}.{write.number}"


# Listing


async def load_in_doubt_writes(store: Store, operation_id: str | None = None) -> list[WriteInDoubt]:
    """Returns every write in doubt, or those of one operation, oldest first.

    Those that a running gateway executes are in progress. Raises StoreUnavailable.
    """
    repository = OperationRepository(store, ObjectStateStore(store))
    unfinished = [
        record for record in await repository.list_unfinished() if operation_id in (None, record.id)
    ]
    # Read after the operations, so that none is of an instance that has started since.
    live_instances = await store.list_live_instances()
    unowned = [
        record
        for record in unfinished
        if _is_operation_in_doubt(record) or record.instance not in live_instances
    ]
    # Read last: an owner may have recorded an outcome meanwhile.
    writes_by_operation = await repository.load_writes(*(record.id for record in unowned))
    in_doubt = [
        WriteInDoubt(
            record,
            write,
            await _load_legacy_id_of_object(store, record.tenant, write),
            format_operator_advice(record, write),
        )
        for record in unowned
        if (write := _find_write_in_doubt(record, writes_by_operation[record.id]))
    ]
    return sorted(in_doubt, key=lambda each: each.write.recorded_at)


def advise_to_wait(
    writes: Sequence[WriteInDoubt], faults: Mapping[str, str | None]
) -> list[WriteInDoubt]:
    """Changes the advice for writes whose service does not answer: nobody should settle them now.

    ``faults`` are those of `/readyz`, by the name of the check.
    """
    return [replace(write, to_do=_advise_during_outage(write, faults)) for write in writes]


def _advise_during_outage(write: WriteInDoubt, faults: Mapping[str, str | None]) -> str:
    is_forwarded, environment = write.record.is_forwarded, write.record.tenant.environment
    kinds = ("legacy",) if is_forwarded else ("service", "environments")
    problem = next(filter(None, (faults.get(f"{kind}.{environment}") for kind in kinds)), None)
    if problem is None:
        return write.to_do
    # Not an outage: only an operator ends it, and it names no merchant, so others may be meant.
    if problem.startswith(REFUSAL):
        return (
            "run `payout-gateway keys verify`: if the service refuses this merchant, mend that first, and the "
            f"gateway finds out the outcome. Otherwise {write.to_do}"
        )
    then = "The gateway finds out the outcome when the service is back"
    if is_forwarded:
        then = f"When it is back, {write.to_do}"
    return f"{problem.partition(':')[0]}: wait; nothing to do yet. {then}"


def _is_operation_in_doubt(record: OperationRecord) -> bool:
    """Whether the operation is in doubt.

    A process that tries to resolve it sets the state RUNNING, but leaves the reason.
    """
    return record.state == states.IN_DOUBT or (
        record.state == states.RUNNING and record.reason is not None
    )


def _find_write_in_doubt(record: OperationRecord, record_writes: Sequence[Write]) -> Write | None:
    """Returns the first unanswered write; if there is none, the last of an operation in doubt."""
    unanswered = [write for write in record_writes if write.state == states.SENT]
    return next(
        iter(unanswered or (record_writes[-1:] if _is_operation_in_doubt(record) else [])), None
    )


async def _load_legacy_id_of_object(store: Store, tenant: Tenant, write: Write) -> str | None:
    """Returns the legacy id of the object that a write changes; None for a create."""
    endpoint = _find_write_endpoint(write)
    match = endpoint.pattern.fullmatch(write.path) if endpoint else _OBJECT_ID.search(write.path)
    if not match or "id" not in match.groupdict():
        return None
    first_id = await ObjectStateStore(store).find_first_id(tenant, match["id"])
    return (await load_legacy_ids(store, tenant, [first_id])).get(first_id, first_id)


_OBJECT_ID = re.compile(f"/(?P<id>{ID_PATTERN})")


def _find_write_endpoint(write: Write) -> Endpoint | None:
    """Returns the endpoint of a write; None for a path that only the legacy service has."""
    try:
        return find_documented_endpoint(write.method, write.path)
    except LookupError:
        return None


# Advice

EFFECTS = {
    "POST /recipients": "a recipient that was created at about {since}",
    "PATCH /recipients/{id}": "recipient {id} was changed at about {since}",
    "DELETE /recipients/{id}": "recipient {id} is archived or gone",
    "DELETE /recipients": "the recipients{ids} are archived or gone",
    "POST /recipients/{id}/accounts": "an account added to recipient {id} at about {since}",
    "PATCH /recipients/{id}/accounts/{account}": "account {account} of recipient {id} was changed "
    "at about {since} (which gives it another id)",
    "DELETE /recipients/{id}/accounts/{account}": "account {account} of recipient {id} is gone",
    "POST /batches": "a batch{of} that was created at about {since}",
    "POST /batches/{id}/payments": "a payment added to batch {id} at about {since}",
    "POST /batches/{id}/generate-quote": "batch {id} was quoted at about {since}",
    "POST /batches/{id}/start-processing": "batch {id} is being processed, or was",
    "PATCH /batches/{id}": "the payments of batch {id} were changed at about {since}",
    "DELETE /batches/{id}": "batch {id} is gone",
    "PATCH /batches/{id}/payments/{payment}": "payment {payment} of batch {id} was changed at "
    "about {since}",
    "DELETE /batches/{id}/payments/{payment}": "payment {payment} of batch {id} is gone",
}
"""What there is, or what is true, if a write happened."""

CREATED_ID_PREFIXES = {"recipients": "R", "accounts": "A", "batches": "B", "payments": "P"}
"""Of the object that a POST creates, by the end of its path."""


def find_created_id_prefix(write: Write) -> str | None:
    """Returns the id prefix of the object that a write creates; None if it creates nothing."""
    endpoint = _find_write_endpoint(write)
    if endpoint is None or write.method != "POST":
        return None
    return CREATED_ID_PREFIXES.get(endpoint.path.rpartition("/")[2])


def format_operator_advice(record: OperationRecord, write: Write) -> str:
    """Returns advice for an operator who has access to the service's dashboard."""
    close_advice = (
        "complete by hand the steps that `payout-gateway trace` shows as missing, then run "
        f"`payout-gateway writes close {format_write_id(record, write)}`"
    )
    is_known = write.state != states.SENT or write.operator_outcome is not None
    if is_known and record.reason == FLOW_CHANGED_REASON:
        return f"this version of the gateway cannot continue the request: {close_advice}"
    if write.state != states.SENT:
        return (
            "nothing if the service cannot be read: the gateway continues as soon as it can. If "
            f"the request cannot be continued, {close_advice}"
        )
    if record.operation == CHANGE.name:
        return SIGNED_CHANGE_ADVICE
    if not write.operator_outcome:
        advice = _format_check_advice(record, write)
        return advice if record.is_forwarded else f"{RECONCILIATION_ADVICE} {advice}"
    if is_verdict_refuted(record, write):
        return f"the recorded outcome cannot be right: {_format_check_advice(record, write)}"
    return (
        "no action needed; a running gateway continues from the recorded outcome; if it has to "
        "read the service, as soon as it can. If the recorded outcome is wrong, "
        f"{_format_check_advice(record, write)}"
    )


def is_verdict_refuted(record: OperationRecord, write: Write) -> bool:
    """Whether a gateway has read at the service that the recorded outcome cannot be right."""
    verdict, reason = write.operator_outcome, record.reason or ""
    # Only such a reason names the verdict; others may have the words of ABSENT, too.
    if verdict == states.ABSENT:
        return reason.startswith(f"{verdict} is recorded")
    return verdict is not None and verdict in reason


def _format_check_advice(record: OperationRecord, write: Write) -> str:
    id_ = format_write_id(record, write)
    description, place = _describe_write_effect(record, write), "the service's dashboard"
    if record.is_forwarded:
        # The gateway cannot read what a forwarded write did.
        place = "the legacy service, which it was forwarded to,"
    settle_command = f"`payout-gateway writes settle {id_}"
    if prefix := find_created_id_prefix(write):
        return (
            f"look in {place} for {description}; if it is there, run {settle_command} --made {prefix}-…` "
            f"with its id, otherwise {settle_command} --did-not-happen`"
        )
    return (
        f"check in {place} whether {description}; if so, run {settle_command} --happened`, otherwise "
        f"{settle_command} --did-not-happen`"
    )


def _describe_write_effect(record: OperationRecord, write: Write) -> str:
    since = f"{write.recorded_at:%Y-%m-%d %H:%M:%S} UTC"
    if (endpoint := _find_write_endpoint(write)) is None:
        return f"{write.method} {write.path} was carried out at about {since}"
    match = endpoint.pattern.fullmatch(write.path)
    request = stored_json.decode_value(record.request) if record.request else {}
    request_body = request.get("body") or {}
    is_batch = record.operation == "create_batch"
    payment_count = len(request_body.get("payments") or ()) if is_batch else 0
    return EFFECTS[f"{write.method} {endpoint.path}"].format(
        since=since,
        of=f" of {pluralize(payment_count, 'payment')}" if payment_count else "",
        ids=f" {', '.join(request_body['ids'])}" if request_body.get("ids") else "",
        **(match.groupdict() if match else {}),
    )


# Verdicts


async def find_write_by_shown_id(store: Store, id_: str) -> tuple[OperationRecord, Write]:
    """Finds a write by its id, as `writes unsettled` shows it. Raises ActionRefused."""
    id_prefix, _, number = id_.partition(".")
    repository = OperationRepository(store, ObjectStateStore(store))
    matches = [
        (record, write)
        for record in (
            await repository.list_by_id_prefix(id_prefix) if len(id_prefix) >= ID_CHARACTERS else []
        )
        for write in (await repository.load_writes(record.id))[record.id]
        if str(write.number) == number
    ]
    # A prefix that matches two operations must not pick one of them.
    if len(matches) != 1:
        raise ActionRefused(
            f"there is no write {id_}; `payout-gateway writes unsettled` lists the writes in doubt"
        )
    return matches[0]


async def record_operator_verdict(store: Store, shown_id: str, verdict: str) -> None:
    """Stores an operator's verdict on a write: CONFIRMED, ABSENT, or the id of the created object.

    Raises ActionRefused.
    """
    record, write = await find_write_by_shown_id(store, shown_id)
    check_operator_verdict(record, write, verdict)
    is_correction = _is_verdict_correctable(record, write) and verdict != write.operator_outcome
    if write.state != states.SENT and not is_correction:
        raise ActionRefused(
            f"the outcome of {shown_id} is already known: {states.describe_write_state(write.state)}"
        )
    id_ = format_write_id(record, write)
    in_doubt = await load_in_doubt_writes(store, operation_id=record.id)
    if not is_correction and id_ not in [each.id for each in in_doubt]:
        raise ActionRefused(f"{id_} is in progress; wait for its answer")
    # A verdict that it did not happen allows a retry to send the payment again. Until the service
    # rejects the request as too old, it may still be carried out.
    # Its own time is by the service's clock, which may be behind.
    remaining = max(write.recorded_at, record.started_at) + SURE_AFTER_AGE - store.clock()
    if verdict == states.ABSENT and remaining > timedelta():
        seconds = int(remaining.total_seconds()) + 1
        raise ActionRefused(
            f"{shown_id} was sent a moment ago and may still be carried out; check again in {seconds} s"
        )
    if verdict not in OPERATOR_OUTCOMES:
        verdict = await _resolve_unclaimed_service_id(store, record, verdict)
    # A compare-and-set: a gateway may have found the outcome while the operator was looking.
    repository = OperationRepository(store, ObjectStateStore(store))
    if is_correction:
        is_recorded = await repository.reopen_confirmed_by_operator(record, write, verdict, id_)
    else:
        is_recorded = await repository.record_operator_outcome(record, write.number, verdict, id_)
    if not is_recorded:
        raise ActionRefused(
            f"the outcome of {shown_id} became known meanwhile; see `payout-gateway writes unsettled`"
        )


def _is_verdict_correctable(record: OperationRecord, write: Write) -> bool:
    """Whether an operator's verdict was applied, and no client has an answer that rests on it.

    Only of a forwarded write: of any other, the service was read before it was applied.
    """
    return (
        record.is_forwarded
        and record.state == states.DONE
        and write.state == states.CONFIRMED
        and write.operator_outcome is not None
    )


def check_operator_verdict(record: OperationRecord, write: Write, verdict: str) -> None:
    """Raises ActionRefused if the verdict does not fit the kind of write."""
    if record.operation == CHANGE.name:
        id_ = format_write_id(record, write)
        raise ActionRefused(f"{id_} needs no verdict. What to do: {SIGNED_CHANGE_ADVICE}")
    prefix, is_id = find_created_id_prefix(write), verdict not in OPERATOR_OUTCOMES
    # Without the id, clients could not be answered with the object that was created.
    if prefix and verdict == states.CONFIRMED:
        raise ActionRefused(f"this write creates an object; give its id with --made {prefix}-…")
    if is_id and not prefix:
        raise ActionRefused("this write creates no object; use --happened or --did-not-happen")
    if is_id and not re.fullmatch(f"{prefix}-[A-Za-z0-9]+", verdict):
        raise ActionRefused(
            f"the id after --made must be {prefix}- followed by letters and digits; copy it from "
            "the service's dashboard"
        )


async def _resolve_unclaimed_service_id(
    store: Store, record: OperationRecord, given_id: str
) -> str:
    """Returns the service's id of the created object. Raises ActionRefused if the object is
    known otherwise.
    """
    # The operator may have copied the legacy id from an answer.
    created_id = (await load_current_ids_by_legacy_id(store, record.tenant, [given_id])).get(
        given_id, given_id
    )
    ledger = ObjectStateStore(store)
    repository = OperationRepository(store, ledger)
    # Two writes with the same result would hide that one of them is still unknown.
    for id_ in {given_id, created_id}:
        if await repository.is_object_created_by_other_operation(record, id_):
            raise ActionRefused(f"{given_id} was created by another write; check the id")
    for kind in ("batch", "recipient", "alias"):
        facts = await ledger.load(record.tenant, kind, created_id)
        # An import may have read what the write created.
        if facts and not (facts.get("imported") or facts.get("elsewhere")):
            raise ActionRefused(f"{given_id} is already known as another object; check the id")
    # The legacy service knows only its own id.
    return given_id if record.is_forwarded else created_id
