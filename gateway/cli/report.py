"""`payout-gateway report`: usage by key and operation."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from gateway.cli import options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time, pluralize
from gateway.operator.interruptions import require_known_merchant
from gateway.operator.usage import map_operations_to_replacement_calls
from gateway.storage import Store
from gateway.storage.request_counts import KeyUsage, load_usage, sum_request_counts

FIGURES = ("requests", "refused", "failed", "error_rate", "first_at", "last_at")
"""Attributes of ``RequestCounts``."""


@click.group(cls=options.FullHelpGroup)
def report() -> None:
    """Report what is left to migrate."""


@report.command("usage")
@click.option(
    # At most about a hundred years: the first day must have a date.
    "--days",
    type=click.IntRange(1, 36_500),
    help="Only the last N days, including today.",
)
@options.merchant_option
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

    async def load_keys(store: Store) -> list[KeyUsage]:
        # "No requests" of a misspelt name would look like a merchant that has migrated.
        await require_known_merchant(store, merchant)
        used = await load_usage(store, since)
        return [usage for usage in used if merchant in (None, usage.tenant.merchant)]

    keys = output.run_with_store(settings, load_keys)
    if as_json:
        options.print_json({"since": since, "keys": _build_key_usage_json(keys)})
    elif not keys:
        click.echo("No requests were counted.")
    else:
        _print_usage(keys)


def _print_usage(keys: Sequence[KeyUsage]) -> None:
    rows = [
        [*usage.tenant, usage.key, operation, *(getattr(counts, name) for name in FIGURES)]
        for usage in keys
        # Each key's most used operations first.
        for operation, counts in sorted(
            usage.operations.items(), key=lambda item: item[1].requests, reverse=True
        )
    ]
    total = sum_request_counts(counts for usage in keys for counts in usage.operations.values())
    names = sorted({operation for usage in keys for operation in usage.operations} - {""})
    key_count = pluralize(sum(bool(usage.key) for usage in keys), "key")
    total_row = ["total", "", key_count, pluralize(len(names), "operation")]
    total_row += [getattr(total, name) for name in FIGURES]
    headers = ["merchant", "environment", "key", "operation"]
    headers += [name.removesuffix("_at") for name in FIGURES]
    lines = [["-" if value == "" else value for value in row] for row in rows]
    output.print_table(headers, [*lines, total_row])
    if not all(usage.key for usage in keys):
        click.echo("\n- as merchant, environment and key: requests without a known API key;")
        click.echo("- as the operation: paths that are not an operation;")
        click.echo("- as the key alone: a merchant's signed requests, which use no API key.")
    click.echo("\nerror_rate: the fraction of requests answered with 4xx or 5xx.")
    click.echo("\nReplacement calls:\n")
    replacement_calls = map_operations_to_replacement_calls()
    for name in filter(replacement_calls.__contains__, names):
        click.echo(name)
        for call in replacement_calls[name]:
            click.echo(f"    {call}")


def _build_key_usage_json(keys: Iterable[KeyUsage]) -> list[dict[str, Any]]:
    replacement_calls = map_operations_to_replacement_calls()
    return [
        {
            **usage.tenant._asdict(),
            "key": usage.key,
            "operations": [
                {
                    "operation": operation,
                    **{name: getattr(counts, name) for name in FIGURES},
                    "first_at": format_time(counts.first_at),
                    "last_at": format_time(counts.last_at),
                    "becomes": replacement_calls.get(operation, []),
                }
                for operation, counts in usage.operations.items()
            ],
        }
        for usage in keys
    ]
