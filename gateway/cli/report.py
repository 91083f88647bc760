"""`payout-gateway report`: usage by key and operation."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import Commands
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from gateway.operator.key_usage import group_usage_by_key, list_replacement_calls

if TYPE_CHECKING:
    from gateway.storage.usage_rows import Used

COLUMNS = (
    "merchant",
    "environment",
    "key",
    "operation",
    "requests",
    "refused",
    "failed",
    "error_rate",
    "first_at",
    "last_at",
)


@click.group(cls=Commands)
def report() -> None:
    """Report what is left to migrate."""


@report.command("usage")
@click.option("--days", type=click.IntRange(min=1), help="Only the last N days, including today.")
@click.option("--merchant", help="Only this merchant's keys.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@config_option
def usage(
    *, days: int | None, merchant: str | None, as_json: bool, as_csv: bool, settings: Settings
) -> None:
    """Show which operations each key uses, how often and when, and the calls that replace them.

    Rows show - for requests without a known key and for paths that are not an operation.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv cannot be combined; choose one")
    # Usage is counted per UTC day.
    since = datetime.now(UTC).date() - timedelta(days=days - 1) if days else None
    used = run_to_completion(_used(settings, since))
    rows = [one for one in used if merchant in (None, one.merchant)]
    if as_json:
        click.echo(json.dumps({"since": _text(since), "keys": _by_key(rows)}, indent=2))
    elif as_csv:
        _write_csv(rows)
    elif not rows:
        click.echo("No requests were counted.")
    else:
        _show(rows)


async def _used(settings: Settings, since: date | None) -> list[Used]:
    from gateway.storage import open_store
    from gateway.storage.usage_rows import used_since

    async with open_store(settings.state, create=False) as store:
        return await used_since(store, since)


def _row(one: Used) -> list[str]:
    return [_text(getattr(one, name)) or "-" for name in COLUMNS]


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    return "" if value is None else str(value)


def _write_csv(rows: Iterable[Used]) -> None:
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow([*COLUMNS, "becomes"])
    known = list_replacement_calls()
    for one in rows:
        lines.writerow([*_row(one), "; ".join(known.get(one.operation, []))])


def _show(rows: list[Used]) -> None:
    print_table([name.removesuffix("_at") for name in COLUMNS], [_row(one) for one in rows])
    known = list_replacement_calls()
    if any(not one.key for one in rows):
        click.echo("\n- as merchant, environment and key: requests without a known API key;")
        click.echo("- as the operation: paths that are not an operation;")
        click.echo("- as the key alone: a merchant's signed requests, which use no API key.")
    click.echo("\nerror_rate: the fraction of requests answered with 4xx or 5xx.")
    click.echo("\nReplacement calls:\n")
    for name in sorted({one.operation for one in rows if one.operation in known}):
        click.echo(name)
        for call in known[name]:
            click.echo(f"    {call}")


def _by_key(rows: Iterable[Used]) -> list[dict[str, Any]]:
    """Builds the JSON report, grouped by key."""
    known = list_replacement_calls()
    return [
        {
            "merchant": key.owner.merchant,
            "environment": key.owner.environment,
            "key": key.key,
            "operations": [_operation(one, known) for one in key.operations],
        }
        for key in group_usage_by_key(rows)
    ]


def _operation(one: Used, known: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    told = {name: getattr(one, name) for name in COLUMNS[3:8]}
    moments = {name: _text(getattr(one, name)) for name in COLUMNS[8:]}
    return {**told, **moments, "becomes": known.get(one.operation, [])}
