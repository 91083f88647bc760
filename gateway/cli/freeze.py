"""`payout-gateway freeze` and `unfreeze`: stop and resume writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click

from gateway.cli.options import config_option, format_time, json_option, print_json
from gateway.cli.output import print_table, run_with_store
from gateway.config.settings import Settings
from gateway.operator.interruptions import (
    format_unfreeze_command,
    load_freezes_and_audit_events,
    resolve_freeze_scope,
)
from gateway.storage import Store, Tenant
from gateway.storage.audit_log import AuditEvent
from gateway.storage.freezes import Freeze, freeze_writes, unfreeze_writes

Command = Callable[..., None]


def _add_scope_options(command: Command) -> Command:
    for option in (
        click.option("--all", "everything", is_flag=True, help="Every merchant, live and sandbox."),
        click.option(
            "--environment", type=click.Choice(["live", "sandbox"]), help="One environment."
        ),
        click.option("--merchant", metavar="NAME", help="One merchant."),
    ):
        command = option(command)
    return command


@click.command()
@_add_scope_options
@click.option(
    "--list", "lists", is_flag=True, help="Only show active freezes and the audit log of freezes."
)
@json_option
@config_option
def freeze(
    *,
    merchant: str | None,
    environment: str | None,
    everything: bool,
    lists: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Stop writes immediately, in running gateways too; reads continue.

    Give --merchant, --environment, both (that merchant in that environment), or --all. Writes get
    500 internal_server_error with Retry-After until you run `unfreeze` with the same options. A request
    of several calls that has started continues then. The command is idempotent.
    """
    if lists and (merchant or environment or everything):
        raise click.UsageError("--list cannot be combined with --all, --merchant or --environment")
    # Validated first, so that a usage error does not open the state.
    scope = None if lists else _require_scope(merchant, environment, everything)
    texts = "Frozen.", "Nothing changed: already frozen."
    _change_and_print(settings, scope, freeze_writes, texts, as_json=as_json)


@click.command()
@_add_scope_options
@json_option
@config_option
def unfreeze(
    *,
    merchant: str | None,
    environment: str | None,
    everything: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Resume writes that `freeze` with the same options stopped.

    Only that freeze ends: a merchant that is also frozen by another freeze stays frozen. The
    freezes that remain are shown, each with the command that ends it.
    """
    scope = _require_scope(merchant, environment, everything)
    texts = "Unfrozen.", "Nothing changed: no freeze was set with these options."
    _change_and_print(settings, scope, unfreeze_writes, texts, as_json=as_json)


def _require_scope(
    merchant: str | None, environment: str | None, everything: bool
) -> tuple[str, str]:
    # Exactly one of them: freezing everything must be an explicit choice.
    if everything == bool(merchant or environment):
        raise click.UsageError("give --all, --merchant NAME, --environment, or both of the latter")
    return merchant or "", environment or ""


def _change_and_print(
    settings: Settings,
    scope: tuple[str, str] | None,
    change: Callable[[Store, Tenant], Awaitable[bool]],
    texts: tuple[str, str],
    *,
    as_json: bool,
) -> None:
    """Changes a freeze unless ``scope`` is None, and prints what is frozen; otherwise also the log.

    ``texts`` say that it changed or that it was so before.
    """

    async def change_and_load(store: Store) -> tuple[bool | None, list[Freeze], list[AuditEvent]]:
        changed = scope and await change(store, await resolve_freeze_scope(store, *scope))
        return changed, *await load_freezes_and_audit_events(store)

    changed, frozen, events = run_with_store(settings, change_and_load)
    if as_json:
        scopes = [
            {**_build_scope_json(each.scope), "since": format_time(each.since)} for each in frozen
        ]
        # This key is older than the name in the code; scripts read it.
        report = {"frozen": scopes, "acts": list(map(build_audit_event_json, events))}
        print_json(report if changed is None else {"changed": changed, **report})
        return
    if changed is not None:
        click.echo(texts[0] if changed else texts[1])
    if frozen:
        rows = [
            [
                *_build_scope_cells(each.scope),
                format_time(each.since),
                format_unfreeze_command(each.scope),
            ]
            for each in frozen
        ]
        print_table(["merchant", "environment", "frozen since", "to resume writes"], rows)
    else:
        click.echo("Nothing is frozen.")
    if changed is None and events:
        click.echo("")
        print_audit_events(events)


def _build_scope_cells(scope: Tenant) -> list[str]:
    return [scope.merchant or "all", scope.environment or "both"]


def print_audit_events(events: list[AuditEvent]) -> None:
    rows = [
        [format_time(event.at), *_build_scope_cells(event.scope), event.action, event.actor]
        for event in events
    ]
    print_table(["when", "merchant", "environment", "what", "who"], rows)


def build_audit_event_json(event: AuditEvent) -> dict[str, Any]:
    times = {"at": format_time(event.at), "what": event.action, "by": event.actor}
    return {**times, **_build_scope_json(event.scope)}


def _build_scope_json(scope: Tenant) -> dict[str, str | None]:
    """Builds the JSON of a scope; null means all."""
    return {"merchant": scope.merchant or None, "environment": scope.environment or None}
