"""`payout-gateway trace`: shows everything known about an id."""

from typing import Any

import click

from gateway.cli import options, output
from gateway.cli.freeze import build_audit_event_json
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time
from gateway.operator.interruptions import require_known_merchant
from gateway.operator.object_trace import (
    ObjectTrace,
    find_object_tenants,
    format_trace,
    measure_resolution_seconds,
    trace_object,
)
from gateway.storage import Store
from gateway.storage.operation_records import OperationRecord, Write

UNKNOWN_ID = (
    "nothing is known about this id. A request that changed nothing, such as a read or a refused "
    "request, is only in the log. For a retry, trace the first request: retry_of in the log"
)


@click.command()
@click.argument("id_", metavar="ID", callback=options.require_utf8)
@options.merchant_option
@options.environment_option
@options.json_option
@options.config_option
def trace(
    *, id_: str, merchant: str | None, environment: str | None, as_json: bool, settings: Settings
) -> None:
    """Show everything known about ID.

    ID is any id of a recipient, account, batch or payment, or the X-Request-Id of a request that
    wrote (request_id in the log). Shows the object's other ids, the gateway's records of it, and,
    in chronological order, each request that changed it, with its key and its calls. No personal
    data is shown. If the id exists under several merchants, add --merchant.
    """

    async def load_trace(store: Store) -> ObjectTrace:
        await require_known_merchant(store, merchant)
        tenants = await find_object_tenants(store, id_)
        others = f"the id is known only of {', '.join(map(str, tenants))}"
        # Two merchants may have objects with the same id; their records must not be mixed.
        tenant = options.select_tenant(
            tenants, merchant, environment, others if tenants else UNKNOWN_ID
        )
        return await trace_object(store, tenant, id_)

    object_trace = output.run_with_store(settings, load_trace)
    if as_json:
        options.print_json(_build_trace_json(object_trace))
    else:
        click.echo("\n".join(format_trace(object_trace)))


def _build_trace_json(object_trace: ObjectTrace) -> dict[str, Any]:
    return {
        **object_trace.owner._asdict(),
        "names": [each._asdict() for each in object_trace.known_ids],
        "facts": object_trace.facts,
        "payments": object_trace.payments,
        "requests": [
            {
                "at": format_time(record.started_at),
                "ended": format_time(record.ended_at) if record.ended_at else None,
                "operation": record.operation,
                "key": record.key_name,
                "merchant": record.tenant.merchant,
                "request_id": record.request_id,
                "undertaking": record.id,
                "state": record.state,
                "why": record.reason,
                "writes": [
                    _build_write_json(record, write) for write in object_trace.writes[record.id]
                ],
            }
            for record in object_trace.operations
        ],
        "acts": [
            build_audit_event_json(event) | {"undertaking": event.operation_id}
            for event in object_trace.events
        ],
    }


def _build_write_json(record: OperationRecord, write: Write) -> dict[str, Any]:
    return {
        "at": format_time(write.recorded_at),
        "method": write.method,
        "path": write.path,
        "state": write.state,
        "status": write.status,
        "seconds": measure_resolution_seconds(record, write),
        "made": write.object_id,
        "told": write.operator_outcome,
    }
