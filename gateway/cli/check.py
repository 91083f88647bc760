"""`payout-gateway check`: what is wrong with a configuration, by line and key."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gateway.cli.configured import CONFIG
from gateway.settings import Misconfigured, load


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=CONFIG,
    show_default=True,
    help="The file to validate.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def check(*, config: Path, as_json: bool) -> None:
    """Validate a configuration; exit 1 when something is wrong with it."""
    from gateway.app import check_runnable

    problems: list[str] = []
    try:
        check_runnable(load(config))
    except Misconfigured as error:
        problems = error.problems
    if as_json:
        print(json.dumps({"ok": not problems, "problems": problems}))
    elif problems:
        print("\n".join(problems), file=sys.stderr)
    else:
        print(f"{config}: all is well")
    sys.exit(1 if problems else 0)
