"""`payout-gateway report`: who still uses what."""

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
    """What is left to migrate."""


@report.command("usage")
@click.option(
    "--days", type=click.IntRange(min=1), help="Only the last so many days, today included."
)
@click.option("--merchant", help="Only this merchant's keys.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header line.")
@config_option
def usage(
    *, days: int | None, merchant: str | None, as_json: bool, as_csv: bool, settings: Settings
) -> None:
    """Show per key which operations are used, how often and when, and what each becomes.

    Requests without a key that is known here, and paths that are no operation, are rows with - in
    the place of those.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two answers; choose one")
    since = datetime.now(UTC).date() - timedelta(days=days - 1) if days else None
    used = run_to_completion(_used(settings, since))
    rows = [one for one in used if merchant in (None, one.merchant)]
    if as_json:
        click.echo(json.dumps({"since": _text(since), "keys": _by_key(rows)}, indent=2))
    elif as_csv:
        _write_csv(rows)
    elif not rows:
        click.echo("Nothing was used.")
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
        click.echo(
            "\n- for merchant, environment and key: requests without a key that is known here;"
        )
        click.echo("- for the operation as well: paths that are none;")
        click.echo(
            "- for the key alone, with face signed: a merchant's signed requests, of no key."
        )
    click.echo("\nerror_rate: the part that was answered 4xx or 5xx.")
    click.echo("\nWhat takes the place of each:\n")
    for name in sorted({one.operation for one in rows if one.operation in known}):
        click.echo(name)
        for call in known[name]:
            click.echo(f"    {call}")


def _by_key(rows: Iterable[Used]) -> list[dict[str, Any]]:
    """What is left to migrate, a key at a time."""
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
