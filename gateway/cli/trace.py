"""`payout-gateway trace`: shows everything known about an id."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import (
    document,
    environment_option,
    json_option,
    merchant_option,
    moment,
)
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.operator.object_trace import Traced
    from gateway.storage import Tenant
    from gateway.storage.audit_log import AuditEvent
    from gateway.storage.undertakings import OperationRecord, Write

EDITS = frozenset({"update_batch", "create_payment", "update_payment", "delete_payment"})
DELETES = frozenset({"delete_batch", "delete_batches"})
NOTHING_THERE = "nothing was changed at the service"
DRAFTED = "any change it made is in a draft of the gateway"
ABANDONED_HERE = "its batch is superseded, and the gateway never starts it"


@click.command()
@click.argument("id_", metavar="ID")
@merchant_option
@environment_option
@json_option
@config_option
def trace(
    *, id_: str, merchant: str | None, environment: str | None, as_json: bool, settings: Settings
) -> None:
    """Show everything known about ID.

    ID is any id of a recipient, account, batch or payment, or the X-Request-Id of a request that
    wrote (request_id in the log). Shows the object's other ids, the gateway's records of it, and,
    in chronological order, each request that changed it, with its key and its calls. No personal
    data is shown. If the id exists under several merchants, add --merchant.
    """
    from gateway.operator.object_trace import find_object_tenants
    from gateway.operator.object_trace import trace_object as traced
    from gateway.storage import open_store

    async def done() -> Traced:
        async with open_store(settings.state, create=False) as store:
            owners = [
                one
                for one in await find_object_tenants(store, id_)
                if merchant in (None, one.merchant) and environment in (None, one.environment)
            ]
            return await traced(store, _the_one(owners), id_)

    found = run_to_completion(done())
    if as_json:
        document(_as_json(found))
    else:
        click.echo("\n".join(_in_words(found)))


def _the_one(owners: list[Tenant]) -> Tenant:
    if not owners:
        raise Mistake(
            "nothing is known about this id. A request that changed nothing, such as a read or a "
            "refused "
            "request, is only in the log. For a retry, trace the first request: retry_of in the log"
        )
    if len(owners) > 1:
        whose = ", ".join(map(str, owners))
        raise Mistake(
            f"several tenants have this id: {whose}; choose one with --merchant and --environment"
        )
    return owners[0]


def _as_json(found: Traced) -> dict[str, Any]:
    return {
        **found.owner._asdict(),
        "names": [{"id": name.id, "what": name.what} for name in found.names],
        "facts": json.loads(json.dumps(found.facts, default=str)),
        "payments": found.payments,
        "requests": [
            {
                "at": moment(one.began_at),
                "ended": moment(one.ended_at) if one.ended_at else None,
                "operation": one.operation,
                "key": one.key_name,
                "merchant": one.owner.merchant,
                "request_id": one.request_id,
                "undertaking": one.id,
                "state": one.state,
                "why": one.why,
                "writes": [_write(write) for write in found.writes[one.id]],
            }
            for one in found.undertakings
        ],
        "acts": [_act(act) for act in found.acts],
    }


def _write(write: Write) -> dict[str, Any]:
    return {
        "at": moment(write.entered_at),
        "method": write.method,
        "path": write.path,
        "state": write.state,
        "status": write.status,
        "seconds": _seconds(write),
        "made": write.made,
        "told": write.told,
    }


def _seconds(write: Write) -> float | None:
    """Seconds from when the write was recorded until its outcome was known."""
    if write.settled_at is None:
        return None
    return round((write.settled_at - write.entered_at).total_seconds(), 3)


def _act(act: AuditEvent) -> dict[str, Any]:
    return {
        "at": moment(act.at),
        "what": act.what,
        "by": act.by,
        "merchant": act.merchant or None,
        "environment": act.environment or None,
        "undertaking": act.about,
    }


def _in_words(found: Traced) -> list[str]:
    lines = [f"{found.owner}", ""]
    what: dict[str, list[str]] = {}
    for name in found.names:
        what.setdefault(name.id, []).append(name.what)
    lines += [f"  {id_}  {'; '.join(those)}" for id_, those in what.items()]
    for of, facts in found.facts.items():
        told = ", ".join(f"{name} {_shown(value)}" for name, value in facts.items())
        lines += ["", f"  record of {of}: {told}"]
    if found.payments is not None:
        lines += [f"  payments on record: {found.payments}"]
    # Requests and audit events in one chronological list.
    timed = [(one.began_at, _request(one, found)) for one in found.undertakings]
    timed += [(act.at, [_told_of(act)]) for act in found.acts]
    for _when, those in sorted(timed, key=lambda both: both[0]):
        lines += ["", *those]
    return lines


def _shown(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list | bool) else str(value)


def _told_of(act: AuditEvent) -> str:
    from gateway.storage.audit_log import told_scope

    return f"{moment(act.at)}  {act.by} {act.what}: {told_scope(act.scope)}"


def _request(one: OperationRecord, found: Traced) -> list[str]:
    head = f"{moment(one.began_at)}  {one.operation}, key {one.key_name}, request {one.request_id}"
    its = found.writes[one.id]
    said = _state(one, its)
    state = f"{said}: {one.why}" if one.why else said
    calls = [_call(write, one, found.acts) for write in its]
    return [f"{head}, {state}", *(f"    {line}" for line in [*calls, *_kept_here(one, its)])]


def _kept_here(one: OperationRecord, its: Sequence[Write]) -> list[str]:
    """Explains a completed request that changed nothing at the service: where its change is."""
    from gateway.storage.undertakings import ANSWERED, DONE, NO_PATH

    # NO_PATH: the service has no such endpoint, so the write had no effect there.
    if one.state not in (DONE, ANSWERED) or any(write.state != NO_PATH for write in its):
        return []
    if one.operation in DELETES:
        return [f"{NOTHING_THERE}: {ABANDONED_HERE}"] if its else [NOTHING_THERE]
    return [f"{NOTHING_THERE}: {DRAFTED}" if one.operation in EDITS else NOTHING_THERE]


def _state(one: OperationRecord, its: Sequence[Write]) -> str:
    """The state to show. A request of which nothing was carried out is not shown as `undone`."""
    from gateway.storage.undertakings import ANSWERED, HAPPENED, UNDONE

    if one.state == UNDONE and not any(write.state in (ANSWERED, HAPPENED) for write in its):
        return "did not happen"
    return one.state


def _call(write: Write, one: OperationRecord, acts: Sequence[AuditEvent]) -> str:
    made = f", made {write.made}" if write.made else ""
    return f"{write.method} {write.path}  {_outcome(write, one, acts)}{made}"


def _outcome(write: Write, one: OperationRecord, acts: Sequence[AuditEvent]) -> str:
    """The outcome of a write and its source: an answer, a later read, or an operator."""
    from gateway.storage.journal_states import in_words
    from gateway.storage.undertakings import DID_NOT, HAPPENED

    seconds = _seconds(write)
    if write.state not in (HAPPENED, DID_NOT):
        said = in_words(write.state)
        outcome = f"{said} {write.status}" if write.status else said
        took = f" in {seconds} s" if seconds is not None else ""
        return f"{outcome}{took}{_word(write, one, acts)}"
    outcome = in_words(write.state)
    if write.told in (write.state, write.made) and write.told is not None:
        return f"{outcome} (recorded by {_by(write, one, acts)})"
    found = f" (determined after {seconds:.0f} s)" if seconds is not None else ""
    return f"{outcome}{found}{_word(write, one, acts)}"


def _word(write: Write, one: OperationRecord, acts: Sequence[AuditEvent]) -> str:
    """An operator's verdict that the outcome does not reflect: it differs, or is still open."""
    if write.told is None:
        return ""
    from gateway.storage.journal_states import in_words

    return f", recorded by {_by(write, one, acts)}: {in_words(write.told)}"


def _by(write: Write, one: OperationRecord, acts: Sequence[AuditEvent]) -> str:
    from gateway.operator.in_doubt_writes import write_id
    from gateway.storage.journal_states import in_words, told_of

    told = write.told or ""
    # Earlier versions used the second form.
    whats = (told_of(write_id(one, write), told), f"told: {in_words(told)}")
    who = [act.by for act in acts if act.about == one.id and act.what in whats]
    # Each name once, even if an operator recorded the outcome twice.
    return ", ".join(dict.fromkeys(who)) or "an operator"
