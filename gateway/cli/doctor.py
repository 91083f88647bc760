"""`payout-gateway doctor`: checks the configuration and the services, with reads only."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings

COLOURS = {"ok": "green", "warning": "bold yellow", "skipped": "yellow", "error": "bold red"}

MAX_LINE_CHARACTERS = 160
"""Line width in characters if stdout is not a terminal."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def doctor(*, as_json: bool, settings: Settings) -> None:
    """Check this machine, the state and each environment's service, with reads only.

    Exit code 1 if any check fails.
    """
    from gateway.operator.doctor import run_doctor

    findings = run_to_completion(run_doctor(settings), "Checking")
    # Neither a warning nor a skipped check fails: both may be intended.
    has_no_failure = all(finding.state != "error" for finding in findings)
    if as_json:
        click.echo(
            json.dumps(
                {"ok": has_no_failure, "findings": [asdict(check) for check in findings]}, indent=2
            )
        )
    else:
        rows = [
            [check.environment, check.looked_at, check.state, check.said, check.do]
            for check in findings
        ]
        print_table(
            ["environment", "check", "state", "result", "what to do"],
            rows,
            COLOURS,
            MAX_LINE_CHARACTERS,
        )
    if not has_no_failure:
        click.get_current_context().exit(1)
