"""`payout-gateway writes` and `batches`: writes in doubt, their outcome, and superseded batches."""

from typing import Any

import click

from gateway.admin.port import build_admin_url, fetch_faults
from gateway.cli import options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time
from gateway.operator.in_doubt_writes import (
    WriteInDoubt,
    advise_to_wait,
    check_operator_verdict,
    describe_operator_outcome,
    find_write_by_shown_id,
    load_in_doubt_writes,
    record_operator_verdict,
)
from gateway.operator.operation_closing import close_in_doubt_operation
from gateway.storage import Store
from gateway.storage.superseded_batches import SupersededBatch, list_superseded_batches
from gateway.writes.states import ABSENT, CONFIRMED

NO_GATEWAY_WARNING = (
    "Warning: no gateway answers at {url}, so it is not known here whether the service is up. If it is "
    "down, wait and settle nothing: a gateway finds the outcomes when it is back. Run this on a host "
    "or in a pod of a running gateway, or see the page Writes of its console"
)


@click.group(cls=options.FullHelpGroup)
def writes() -> None:
    """Manage writes in doubt: sent, but not answered."""


@writes.command("unsettled")
@options.json_option
@options.config_option
def list_writes_in_doubt(*, as_json: bool, settings: Settings) -> None:
    """List writes in doubt and what to do about each. The exit code is 0 even if there are some.

    A write is in doubt if it was sent but not answered and the gateway could not yet read its
    outcome from the service. The gateway resolves most of them within a minute. Until then, the
    object cannot be changed, and a retry of the request gets an error. Writes in progress are not
    listed.
    """

    async def load_writes(store: Store) -> list[WriteInDoubt]:
        writes = await load_in_doubt_writes(store)
        faults = await fetch_faults(settings.server) if writes else {}
        if faults is None:
            click.echo(NO_GATEWAY_WARNING.format(url=build_admin_url(settings.server)), err=True)
        return advise_to_wait(writes, faults or {})

    in_doubt = output.run_with_store(settings, load_writes)
    if as_json:
        options.print_json({"writes": [_build_write_json(write) for write in in_doubt]})
    elif not in_doubt:
        click.echo("No write is in doubt.")
    else:
        click.echo("\n\n".join(_format_write_in_doubt(write) for write in in_doubt))


def _build_write_json(in_doubt: WriteInDoubt) -> dict[str, Any]:
    record, write = in_doubt.record, in_doubt.write
    return {
        "write": in_doubt.id,
        **record.tenant._asdict(),
        "operation": record.operation,
        "key": record.key_name,
        "request_id": record.request_id,
        "since": format_time(write.recorded_at),
        "method": write.method,
        "path": write.path,
        "object": in_doubt.object,
        "state": write.state,
        "why": in_doubt.reason,
        "told": write.operator_outcome,
        "what_to_do": in_doubt.to_do,
    }


def _format_write_in_doubt(in_doubt: WriteInDoubt) -> str:
    record, write = in_doubt.record, in_doubt.write
    object_id = f", {in_doubt.object}" if in_doubt.object else ""
    lines = [
        f"{in_doubt.id}  {write.method} {write.path}  since {format_time(write.recorded_at)}",
        f"    request:     {record.tenant}, {record.operation}, key {record.key_name}{object_id}",
        f"    reason:      {in_doubt.reason}",
    ]
    if in_doubt.operator_outcome_text:
        lines.append(f"    recorded:    {in_doubt.operator_outcome_text}")
    return "\n".join([*lines, f"    what to do:  {in_doubt.to_do}"])


@writes.command("settle")
@click.argument("write")
@click.option("--happened", is_flag=True, help="The service carried it out.")
@click.option(
    "--did-not-happen",
    is_flag=True,
    help="The service did not carry it out; the request may be sent again.",
)
@click.option(
    "--made",
    metavar="ID",
    default="",
    help="The service carried it out and created this object.",
)
@options.yes_option
@options.config_option
def settle_write(
    *, write: str, happened: bool, did_not_happen: bool, made: str, yes: bool, settings: Settings
) -> None:
    """Record the outcome of WRITE, an id that `writes unsettled` lists.

    Check the service first: the outcome decides whether money is sent again. Give exactly one of
    --happened, --did-not-happen and --made. A running gateway uses it within two seconds. If the
    gateway can see at the service that the write happened, that takes precedence.
    """
    if [happened, did_not_happen, bool(made)].count(True) != 1:
        raise click.UsageError("give exactly one of --happened, --did-not-happen and --made ID")
    verdict = made or (CONFIRMED if happened else ABSENT)
    verdict_text = describe_operator_outcome(verdict)

    # Checked before the prompt, so that an impossible verdict fails without a question.
    async def check_and_describe_write(store: Store) -> str:
        record, row = await find_write_by_shown_id(store, write)
        check_operator_verdict(record, row, verdict)
        return f"{row.method} {row.path} of {record.tenant}, {format_time(row.recorded_at)}"

    description = output.run_with_store(settings, check_and_describe_write)
    options.require_confirmation(f"Record the outcome of {description}: {verdict_text}?", yes=yes)
    # The checks are repeated: the state may change while the prompt is open.
    output.run_with_store(settings, lambda store: record_operator_verdict(store, write, verdict))
    click.echo(f"Recorded: {description}: {verdict_text}. A running gateway continues from there.")


@writes.command("close")
@click.argument("write")
@options.yes_option
@options.config_option
def close_operation(*, write: str, yes: bool, settings: Settings) -> None:
    """Give up a request that cannot be continued, such as one started by another version.

    The request that WRITE belongs to is not continued, and its objects can be changed again. The
    same request counts as a new one; if this one has created recipients, batches or payments, it
    gets 500 for a day, and nothing is sent. The outcome of each of its writes must be known or
    recorded with `writes settle`.
    """

    async def load_operation_description(store: Store) -> str:
        record, _row = await find_write_by_shown_id(store, write)
        return f"{record.operation} of {record.tenant}, started {format_time(record.started_at)}"

    description = output.run_with_store(settings, load_operation_description)
    options.require_confirmation(f"Give up {description}?", yes=yes)
    output.run_with_store(settings, lambda store: close_in_doubt_operation(store, write))
    click.echo(f"Closed: {description}.")


@click.group(cls=options.FullHelpGroup)
def batches() -> None:
    """List batches that clients no longer see."""


@batches.command("abandoned")
@options.json_option
@options.config_option
def print_superseded_batches(*, as_json: bool, settings: Settings) -> None:
    """List superseded batches: the service still has them, or may have them, but clients do not.

    The gateway never starts a superseded batch. Do not start one in the service's dashboard: its
    payments were changed, deleted, or are paid by another batch.
    """
    superseded = output.run_with_store(settings, list_superseded_batches)
    if as_json:
        options.print_json(
            {"batches": [_build_superseded_batch_json(record) for record in superseded]}
        )
    elif not superseded:
        click.echo("There are no superseded batches.")
    else:
        headers = ["merchant", "environment", "batch", "superseded at the service", "since"]
        rows = [
            [*each.tenant, each.batch_id, each.upstream_id or "may exist", each.since, each.advice]
            for each in superseded
        ]
        output.print_table([*headers, "what to do"], rows)


def _build_superseded_batch_json(record: SupersededBatch) -> dict[str, Any]:
    return {
        **record.tenant._asdict(),
        "batch": record.batch_id,
        "abandoned": record.upstream_id,
        "since": format_time(record.since),
        "deleted": record.is_deleted,
        "what_to_do": record.advice,
    }
