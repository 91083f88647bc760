"""`payout-gateway brownout`: planned interruptions of legacy operations."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from gateway.auth.key_rows import load_listed_keys
from gateway.cli import CommandError, options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time
from gateway.operator.interruptions import (
    describe_window_scope,
    describe_window_state,
    load_usage_affected_by_window,
    resolve_window_key,
)
from gateway.storage import Store
from gateway.storage.brownout_rows import (
    Brownout,
    end_brownouts,
    insert_brownout,
    list_brownouts,
)
from mappings import OPERATIONS, UNLISTED


def _parse_time(_ctx: click.Context, _option: click.Parameter, text: str | None) -> datetime | None:
    """Parses a time with a time zone: without one a brownout could start hours early or late."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError):
        if (time := datetime.fromisoformat(text)).tzinfo:
            return time.astimezone(UTC)
    raise click.BadParameter(f"{text!r} is not a time such as 2026-11-30T09:00Z, with a zone")


_time_option = partial(click.option, metavar="TIME", callback=_parse_time)


@click.group(cls=options.FullHelpGroup)
def brownout() -> None:
    """Schedule planned interruptions before the legacy interface ends."""


@brownout.command("schedule")
@_time_option("--from", "begins_at", help="Start time, such as 2026-11-30T09:00Z. Default: now.")
@_time_option("--until", "ends_at", required=True, help="End time, such as 2026-11-30T09:30Z.")
@click.option("--merchant", metavar="NAME", default="", help="Only requests of this merchant.")
@click.option("--key", metavar="NAME", default="", help="Only this key, by name or prefix.")
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="NAME",
    help="Only this operation, as named by `operations`, or a group: recipients, payout_methods, "
    "batches (without their payments), payments, balances or geography.",
)
@click.option("--dry-run", is_flag=True, help="Schedule nothing; only list who would be affected.")
@options.yes_option
@options.config_option
def schedule_brownout(
    *,
    begins_at: datetime | None,
    ends_at: datetime,
    operations: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    settings: Settings,
    **scope: Any,
) -> None:
    """Schedule a brownout, and list who used the affected operations in the last seven days.

    --operation can be repeated. On a terminal, the command asks for confirmation unless --dry-run is given.
    """
    now = datetime.now(UTC)
    window = Brownout(
        begins_at=begins_at or now,
        ends_at=ends_at,
        operations=_expand_operation_names(operations),
        **scope,
    )
    # A window in the past would never take effect, and nobody would notice.
    if ends_at <= max(window.begins_at, now):
        raise CommandError("--until: the window would end before it starts, or before now")

    async def resolve_scope(store: Store) -> tuple[Brownout, list[list[object]]]:
        resolved = resolve_window_key(window, await load_listed_keys(store))
        return resolved, await load_usage_affected_by_window(store, resolved)

    window, affected = output.run_with_store(settings, resolve_scope)
    if affected:
        headers = ["merchant", "environment", "key", "operation", "requests", "last"]
        click.echo("Affected requests in the last seven days:\n")
        output.print_table(headers, affected)
        click.echo()
    else:
        click.echo("No affected request was made in the last seven days.")
    names = [name for name in (window.merchant, window.key and f"key {window.key}") if name]
    operation_names = ", ".join(window.operations) or "requests"
    subject = (
        f"{operation_names} of {', '.join(names) or 'every key'} from {_format_period(window)}"
    )
    if dry_run:
        click.echo(f"Would refuse {subject}.")
        return
    # Scripts do not have to pass --yes.
    options.require_confirmation(f"Refuse {subject}?", yes=yes or not sys.stdin.isatty())
    output.run_with_store(settings, lambda store: insert_brownout(store, window))
    click.echo(f"Brownout {window.id} refuses {subject}.")


def _format_period(window: Brownout) -> str:
    return f"{format_time(window.begins_at)} to {format_time(window.ends_at)}"


def _expand_operation_names(names_or_groups: Iterable[str]) -> tuple[str, ...]:
    """Replaces each group by the names of its operations. Raises CommandError."""
    # An operation's group is the module of its flow.
    group_by_name = {
        operation.name: operation.flow.__module__.rpartition(".")[2]
        for operation in (*OPERATIONS, *UNLISTED)
    }
    expanded: dict[str, None] = {}
    for name_or_group in names_or_groups:
        names = [name for name, group in group_by_name.items() if group == name_or_group]
        if not names and name_or_group not in group_by_name:
            groups = ", ".join(dict.fromkeys(group_by_name.values()))
            raise CommandError(
                f"--operation {name_or_group}: not an operation, nor a group: {groups}"
            )
        expanded |= dict.fromkeys(names or [name_or_group])
    return tuple(expanded)


@brownout.command("list")
@options.json_option
@options.config_option
def print_brownouts(*, as_json: bool, settings: Settings) -> None:
    """List brownouts."""
    windows, now = output.run_with_store(settings, list_brownouts), datetime.now(UTC)
    if as_json:
        options.print_json({"brownouts": [_build_window_json(window, now) for window in windows]})
        return
    if not windows:
        click.echo("There are no brownouts.")
    for window in windows:
        click.echo(f"{window.id}  {_format_period(window)}  {describe_window_scope(window)}")
        click.echo(f"    {describe_window_state(window, now)}")


def _build_window_json(window: Brownout, now: datetime) -> dict[str, Any]:
    return {
        "id": window.id,
        "from": format_time(window.begins_at),
        "until": format_time(window.ends_at),
        "merchant": window.merchant or None,
        "key": window.key or None,
        "operations": list(window.operations),
        "state": describe_window_state(window, now),
    }


@brownout.command("off")
@click.argument("brownout_id", required=False, callback=options.require_utf8)
@options.config_option
def cancel_brownouts(*, brownout_id: str | None, settings: Settings) -> None:
    """Switch off one brownout, or all that have not ended. Takes effect within a second."""
    count = output.run_with_store(
        settings, lambda store: end_brownouts(store, store.clock(), brownout_id)
    )
    if brownout_id and not count:
        raise CommandError(
            f"{brownout_id}: no scheduled or active brownout has this id; see `brownout list`"
        )
    click.echo(f"{count} switched off." if count else "No brownout is scheduled or active.")
