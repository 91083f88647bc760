"""`payout-gateway batches`: batches at the service that must not be started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import Commands
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.storage.abandoned import AbandonedBatch


@click.group(cls=Commands)
def batches() -> None:
    """List batches that clients no longer see."""


@batches.command("abandoned")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def abandoned(*, as_json: bool, settings: Settings) -> None:
    """List superseded batches: the service still has them, or may have them, but clients do not.

    The gateway never starts a superseded batch. Do not start one in the service's dashboard: its
    payments were changed, deleted, or are paid by another batch.
    """
    from gateway.storage import open_store
    from gateway.storage.abandoned import abandoned_batches

    async def done() -> list[AbandonedBatch]:
        async with open_store(settings.state, create=False) as store:
            return await abandoned_batches(store)

    found = run_to_completion(done())
    if as_json:
        click.echo(json.dumps({"batches": [_as_json(one) for one in found]}, indent=2))
    elif not found:
        click.echo("There are no superseded batches.")
    else:
        heads = ["merchant", "environment", "batch", "superseded at the service", "since"]
        print_table([*heads, "what to do"], [_as_row(one) for one in found])


def _as_json(one: AbandonedBatch) -> dict[str, Any]:
    return {
        **one.owner._asdict(),
        "batch": one.batch,
        "abandoned": one.upstream,
        "since": _moment(one.since),
        "deleted": one.is_deleted,
        "what_to_do": one.to_do,
    }


def _as_row(one: AbandonedBatch) -> list[str]:
    batch = one.batch or "-"
    return [*one.owner, batch, one.upstream or "may exist", _moment(one.since), one.to_do]


def _moment(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"
