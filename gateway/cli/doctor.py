"""`payout-gateway doctor`: whether the configured service can be worked with, by reads only."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings

COLOURS = {"ok": "green", "warning": "bold yellow", "skipped": "yellow", "error": "bold red"}

WIDEST = 160
"""Characters of a line where it is piped: what is found and what to do about it are sentences."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@config_option
def doctor(*, as_json: bool, settings: Settings) -> None:
    """Try the configured service, by reads only; exit 1 when something is wrong."""
    from gateway.operator.doctor import run_doctor

    found = run_to_completion(run_doctor(settings), "Trying what is configured")
    is_well = all(finding.state != "error" for finding in found)
    if as_json:
        click.echo(
            json.dumps({"ok": is_well, "findings": [asdict(one) for one in found]}, indent=2)
        )
    else:
        rows = [[one.environment, one.looked_at, one.state, one.said, one.do] for one in found]
        print_table(
            ["environment", "looked at", "state", "found", "what to do"], rows, COLOURS, WIDEST
        )
    if not is_well:
        click.get_current_context().exit(1)
