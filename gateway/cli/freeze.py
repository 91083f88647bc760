"""`payout-gateway freeze` and `unfreeze`: stop and resume writes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from gateway.auth.key_rows import load_tenants_with_credentials
from gateway.cli import options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time
from gateway.operator.interruptions import (
    format_unfreeze_command,
    resolve_freeze_scope,
)
from gateway.storage import Store, Tenant
from gateway.storage.audit_log import AuditEvent, describe_scope, list_audit_events
from gateway.storage.freezes import (
    WRITES_FROZEN,
    WRITES_UNFROZEN,
    Freeze,
    freeze_writes,
    list_freezes,
    unfreeze_writes,
)

NO_KEY_WARNING = (
    "Warning: no key has this environment, or this merchant in it, so no write is stopped or resumed "
    "now; `payout-gateway keys list` shows the keys"
)

_all_option = click.option(
    "--all", "everything", is_flag=True, help="Every merchant, live and sandbox."
)


@click.command()
@options.merchant_option
@options.environment_option
@_all_option
@click.option(
    "--list", "lists", is_flag=True, help="Only show active freezes and the audit log of freezes."
)
@options.json_option
@options.config_option
def freeze(*, lists: bool, as_json: bool, settings: Settings, **scope: Any) -> None:
    """Stop writes immediately, in running gateways too; reads continue.

    Give --merchant, --environment, both (that merchant in that environment), or --all. Writes get
    500 internal_server_error with Retry-After until you run `unfreeze` with the same options. A request
    of several calls that has started continues then. The command is idempotent.
    """
    if lists and any(scope.values()):
        raise click.UsageError("--list cannot be combined with --all, --merchant or --environment")
    texts = "Frozen.", "Nothing changed: already frozen."
    _change_and_print(settings, None if lists else freeze_writes, scope, texts, as_json=as_json)


@click.command()
@options.merchant_option
@options.environment_option
@_all_option
@options.json_option
@options.config_option
def unfreeze(*, as_json: bool, settings: Settings, **scope: Any) -> None:
    """Resume writes that `freeze` with the same options stopped.

    Only that freeze ends: a merchant that is also frozen by another freeze stays frozen. The
    freezes that remain are shown, each with the command that ends it.
    """
    texts = "Unfrozen.", "Nothing changed: no freeze was set with these options."
    _change_and_print(settings, unfreeze_writes, scope, texts, as_json=as_json)


def _change_and_print(
    settings: Settings,
    apply: Callable[[Store, Tenant], Awaitable[bool]] | None,
    scope: Mapping[str, Any],
    texts: tuple[str, str],
    *,
    as_json: bool,
) -> None:
    """Makes the change, if any, and prints what is frozen; without a change also the log.

    ``texts``: that it changed, or that it was so before.
    """
    merchant, environment = scope["merchant"], scope["environment"]
    # Exactly one of them: freezing everything must be an explicit choice.
    if apply and scope["everything"] == bool(merchant or environment):
        raise click.UsageError("give --all, --merchant NAME, --environment, or both of the latter")

    async def change_and_load(store: Store) -> tuple[bool | None, list[Freeze], list[AuditEvent]]:
        changed = None
        if apply:
            changed = await apply(store, await resolve_freeze_scope(store, merchant, environment))
            tenants = await load_tenants_with_credentials(store)
            # The merchant exists; the environment may be a slip.
            if environment and not any(
                tenant.environment == environment and merchant in (None, tenant.merchant)
                for tenant in tenants
            ):
                click.echo(NO_KEY_WARNING, err=True)
        prefixes = WRITES_FROZEN, WRITES_UNFROZEN
        events = (
            await list_audit_events(store, prefixes=prefixes) if changed is None or as_json else []
        )
        return changed, await list_freezes(store), events

    changed, frozen, events = output.run_with_store(settings, change_and_load)
    if as_json:
        scopes = [
            {**_build_scope_json(each.scope), "since": format_time(each.since)} for each in frozen
        ]
        report = {"frozen": scopes, "acts": list(map(build_audit_event_json, events))}
        options.print_json(report if changed is None else {"changed": changed, **report})
        return
    if changed is not None:
        click.echo(texts[not changed])
    if frozen:
        rows = [
            [
                describe_scope(each.scope) + each.reason,
                each.since,
                format_unfreeze_command(each.scope),
            ]
            for each in frozen
        ]
        output.print_table(["frozen", "since", "to resume writes"], rows)
    else:
        click.echo("Nothing is frozen.")
    if events:
        click.echo("")
        print_audit_events(events)


def print_audit_events(events: list[AuditEvent]) -> None:
    rows = [[event.at, event.action, describe_scope(event.scope), event.actor] for event in events]
    output.print_table(["when", "what", "scope", "who"], rows)


def build_audit_event_json(event: AuditEvent) -> dict[str, Any]:
    times = {"at": format_time(event.at), "what": event.action, "by": event.actor}
    return {**times, **_build_scope_json(event.scope)}


def _build_scope_json(scope: Tenant) -> dict[str, str | None]:
    """Builds the JSON of a scope; null means all."""
    return {"merchant": scope.merchant or None, "environment": scope.environment or None}
