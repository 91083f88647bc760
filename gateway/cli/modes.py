"""`payout-gateway modes`: chooses at run time which service answers a key's requests."""

from typing import Any

import click

from gateway.cli import options, output
from gateway.cli.freeze import build_audit_event_json, print_audit_events
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time
from gateway.operator.mode_switches import load_switches_and_batch_counts, plan_switch
from gateway.storage import Store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.mode_rows import GROUPS, MODES, SWITCHED_PREFIX, Group, Mode


@click.group(cls=options.FullHelpGroup)
def modes() -> None:
    """Choose which service answers a key's requests: the current or the legacy one."""


@modes.command("set")
@click.option("--key", metavar="NAME", help="One key, by name or prefix.")
@click.option("--merchant", metavar="NAME", help="Every key of a merchant, including future keys.")
@options.environment_option
@click.option(
    "--group",
    type=click.Choice(GROUPS),
    multiple=True,
    help="Only this group of operations. Default: all.",
)
@options.yes_option
@click.argument("mode", type=click.Choice(MODES))
@options.config_option
def switch_keys(
    *, group: tuple[Group, ...], yes: bool, mode: Mode, settings: Settings, **scope: str | None
) -> None:
    """Switch a key or a merchant to `translate`, `forward` or `compare`.

    Running gateways follow within a second. Requests in flight are not affected.

    The group `batches` includes payments, quotes, summaries and starts. A batch stays with the
    service that created it, whatever the mode.
    """
    if (scope["key"] is None) == (scope["merchant"] is None):
        raise click.UsageError("give either --key NAME or --merchant NAME")
    plan = output.run_with_store(
        settings, lambda store: plan_switch(store, settings, mode, group or GROUPS, **scope)
    )
    # On stderr with the prompt: stdout has only the result.
    for line in (f"Switch {plan.subject} to {mode}:", *plan.effects):
        click.echo(line, err=True)
    options.require_confirmation(f"Switch to {mode}?", yes=yes)
    # The state is not open while the prompt waits.
    replaced_keys = output.run_with_store(settings, plan.execute)
    click.echo(f"Switched to {mode}; running gateways follow within a second.")
    if replaced_keys:
        click.echo(f"This replaces the mode of these keys: {', '.join(replaced_keys)}.")


# Listing


@modes.command("list")
@options.json_option
@options.config_option
def list_switched_keys(*, as_json: bool, settings: Settings) -> None:
    """List the switched keys and the audit log of switches. All other keys are translated.

    Also shows how many batches of each merchant stay at the legacy service, which created them.
    """

    async def load(store: Store) -> Any:
        events = await list_audit_events(store, prefixes=(SWITCHED_PREFIX,))
        return *await load_switches_and_batch_counts(store), events

    switches, batch_counts, events = output.run_with_store(settings, load)
    rows = [
        {**each.tenant._asdict(), "key": each.key or None, "group": each.group, "mode": each.mode}
        | {"since": format_time(each.since)}
        for each in switches
    ]
    if as_json:
        report = {
            "modes": rows,
            "begun_at_legacy": [
                {**tenant._asdict(), "batches": count} for tenant, count in batch_counts.items()
            ],
            "acts": list(map(build_audit_event_json, events)),
        }
        options.print_json(report)
        return
    if not rows:
        click.echo("No mode is set: every request is translated.")
        return
    output.print_table([*rows[0]], ([each or "every key" for each in row.values()] for row in rows))
    for tenant, batch_count in batch_counts.items():
        click.echo(
            f"\n{tenant}: batches that stay at the legacy service, which created them: {batch_count}."
        )
    click.echo("")
    print_audit_events(events)
