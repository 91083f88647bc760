"""`payout-gateway doctor`: whether the configured service can be worked with, by reads only."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gateway.cli.configured import config_option
from gateway.cli.output import completed, table
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.doctor import Finding


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def doctor(*, as_json: bool, settings: Settings) -> None:
    """Try the configured service, by reads only; exit 1 when something is wrong."""
    found = completed(_examined(settings))
    is_well = all(finding.state != "wrong" for finding in found)
    if as_json:
        click.echo(
            json.dumps({"ok": is_well, "findings": [asdict(one) for one in found]}, indent=2)
        )
    else:
        rows = [[one.environment, one.looked_at, one.state, one.said, one.do] for one in found]
        table(["environment", "looked at", "state", "found", "what to do"], rows)
    if not is_well:
        click.get_current_context().exit(1)


async def _examined(settings: Settings) -> list[Finding]:
    from gateway.app import check_runnable
    from gateway.doctor import examine
    from gateway.learned import recall_learned
    from gateway.store import Ledger, open_store
    from gateway.upstream import check_extensions, open_upstream

    check_extensions()
    check_runnable(settings)
    async with open_store(settings.state, create=False) as store:
        learned = await recall_learned(Ledger(store), settings.environments.configured())
        async with open_upstream(settings, learned=learned) as upstream:
            return await examine(settings, store, upstream, learned)
