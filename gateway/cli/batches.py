"""`payout-gateway batches`: batches at the service that must not be started."""

from __future__ import annotations

from typing import Any

import click

from gateway.cli.options import FullHelpGroup, config_option, format_time, json_option, print_json
from gateway.cli.output import print_table, run_with_store
from gateway.config.settings import Settings
from gateway.storage.superseded_batches import SupersededBatch, list_superseded_batches


@click.group(cls=FullHelpGroup)
def batches() -> None:
    """List batches that clients no longer see."""


@batches.command("abandoned")
@json_option
@config_option
def print_superseded_batches(*, as_json: bool, settings: Settings) -> None:
    """List superseded batches: the service still has them, or may have them, but clients do not.

    The gateway never starts a superseded batch. Do not start one in the service's dashboard: its
    payments were changed, deleted, or are paid by another batch.
    """
    superseded = run_with_store(settings, list_superseded_batches)
    if as_json:
        print_json({"batches": [_build_superseded_batch_json(record) for record in superseded]})
    elif not superseded:
        click.echo("There are no superseded batches.")
    else:
        headers = ["merchant", "environment", "batch", "superseded at the service", "since"]
        print_table(
            [*headers, "what to do"], [_build_superseded_batch_row(record) for record in superseded]
        )


def _build_superseded_batch_json(record: SupersededBatch) -> dict[str, Any]:
    return {
        **record.tenant._asdict(),
        "batch": record.batch_id,
        # The names of JSON keys are older than those in the code; scripts read them.
        "abandoned": record.upstream_id,
        "since": format_time(record.since),
        "deleted": record.is_deleted,
        "what_to_do": record.advice,
    }


def _build_superseded_batch_row(record: SupersededBatch) -> list[str]:
    batch_id = record.batch_id or "-"
    return [
        *record.tenant,
        batch_id,
        record.upstream_id or "may exist",
        format_time(record.since),
        record.advice,
    ]
