"""`payout-gateway doctor`: checks the configuration and the services, with reads only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.operator.doctor import Finding

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
                {
                    "ok": has_no_failure,
                    "findings": [_build_finding_json(finding) for finding in findings],
                },
                indent=2,
            )
        )
    else:
        rows = [
            [finding.environment, finding.check_name, finding.state, finding.result, finding.advice]
            for finding in findings
        ]
        print_table(
            ["environment", "check", "state", "result", "what to do"],
            rows,
            COLOURS,
            MAX_LINE_CHARACTERS,
        )
    if not has_no_failure:
        click.get_current_context().exit(1)


def _build_finding_json(finding: Finding) -> dict[str, str]:
    # These keys are older than the names in the code; scripts read them.
    return {
        "environment": finding.environment,
        "looked_at": finding.check_name,
        "state": finding.state,
        "said": finding.result,
        "do": finding.advice,
    }
