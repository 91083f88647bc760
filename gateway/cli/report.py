"""`payout-gateway report`: usage by key and operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from gateway.cli import options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time, pluralize
from gateway.operator.interruptions import require_known_merchant
from gateway.operator.usage import group_usage_by_key, map_operations_to_replacement_calls
from gateway.storage import Store
from gateway.storage.request_counts import UsageSummary, load_usage_summaries


@click.group(cls=options.FullHelpGroup)
def report() -> None:
    """Report what is left to migrate."""


@report.command("usage")
@click.option("--days", type=click.IntRange(min=1), help="Only the last N days, including today.")
@click.option("--merchant", help="Only this merchant's keys.")
@options.json_option
@options.config_option
def show_usage(
    *, days: int | None, merchant: str | None, as_json: bool, settings: Settings
) -> None:
    """Show which operations each key uses, how often and when, and the calls that replace them.

    Rows show - for requests without a known key and for paths that are not an operation.
    """
    # Usage is counted per UTC day.
    since = datetime.now(UTC).date() - timedelta(days=days - 1) if days else None

    async def load_rows(store: Store) -> list[UsageSummary]:
        # "No requests" of a misspelt name would look like a merchant that has migrated.
        await require_known_merchant(store, merchant)
        used = await load_usage_summaries(store, since)
        return [row for row in used if merchant in (None, row.merchant)]

    rows = output.run_with_store(settings, load_rows)
    if as_json:
        options.print_json({"since": str(since or ""), "keys": _build_key_usage_json(rows)})
    elif not rows:
        click.echo("No requests were counted.")
    else:
        _print_usage(rows)


def _format_value(value: object) -> str:
    return format_time(value) if isinstance(value, datetime) else str(value)


def _build_total_row(rows: Sequence[UsageSummary]) -> list[str]:
    requests, refused, failed = (
        sum(getattr(row, name) for row in rows) for name in ("requests", "refused", "failed")
    )
    operations = {row.operation for row in rows if row.operation}
    keys = {row[:3] for row in rows if row.key}
    labels = ["total", "", pluralize(len(keys), "key"), pluralize(len(operations), "operation")]
    rate = round((refused + failed) / requests, 4) if requests else 0.0
    times = min(row.first_at for row in rows), max(row.last_at for row in rows)
    return [*labels, *map(_format_value, (requests, refused, failed, rate, *times))]


def _print_usage(rows: list[UsageSummary]) -> None:
    # Each key's most used operations first; a stable sort keeps the keys together.
    rows = sorted(rows, key=lambda row: (row.merchant, row.environment, row.key, -row.requests))
    headers = [name.removesuffix("_at") for name in UsageSummary._fields]
    lines = [[_format_value(value) or "-" for value in row] for row in rows]
    output.print_table(headers, [*lines, _build_total_row(rows)])
    replacement_calls = map_operations_to_replacement_calls()
    if any(not row.key for row in rows):
        click.echo("\n- as merchant, environment and key: requests without a known API key;")
        click.echo("- as the operation: paths that are not an operation;")
        click.echo("- as the key alone: a merchant's signed requests, which use no API key.")
    click.echo("\nerror_rate: the fraction of requests answered with 4xx or 5xx.")
    click.echo("\nReplacement calls:\n")
    for name in sorted({row.operation for row in rows if row.operation in replacement_calls}):
        click.echo(name)
        for call in replacement_calls[name]:
            click.echo(f"    {call}")


def _build_key_usage_json(rows: Iterable[UsageSummary]) -> list[dict[str, Any]]:
    """Builds the JSON report, grouped by key."""
    replacement_calls = map_operations_to_replacement_calls()
    return [
        {
            **key.owner._asdict(),
            "key": key.key,
            "operations": [
                {
                    **{name: getattr(row, name) for name in UsageSummary._fields[3:]},
                    "first_at": format_time(row.first_at),
                    "last_at": format_time(row.last_at),
                    "becomes": replacement_calls.get(row.operation, []),
                }
                for row in key.operations
            ],
        }
        for key in group_usage_by_key(rows)
    ]
