"""What the commands of an operator have in common: groups, moments, and one JSON document."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import click

from gateway.cli.errors import Mistake

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
merchant_option = click.option("--merchant", metavar="NAME", help="Of this merchant alone.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
environment_option = click.option(
    "--environment", type=click.Choice(["live", "sandbox"]), help="Of this environment alone."
)


class Commands(click.Group):
    """A group whose help has what each of its commands does in whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(200)) for name, one in found if one])


def document(told: Any) -> None:
    click.echo(json.dumps(told, indent=2))


def moment(when: datetime | None) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}" if when else "-"


def ask_confirmation(question: str, *, yes: bool) -> None:
    """Asks, on stderr, unless told not to; a Mistake where the answer is no, or none."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise Mistake("nobody answered; --yes goes ahead without asking") from None
    if not sys.stdin.isatty():
        click.echo(err=True)  # the line that on a terminal the answer's return ends
    if not agreed:
        raise Mistake("nothing was changed")


def ask_confirmation_if_interactive(question: str, *, yes: bool) -> None:
    """The same of somebody at a terminal; what is called by a program goes ahead."""
    ask_confirmation(question, yes=yes or not sys.stdin.isatty())
