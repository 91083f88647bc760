"""The command line: one group, one module a command, each loaded when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from gateway.cli.mistakes import Mistake

COMMANDS = {
    "serve": "Run the gateway.",
    "simulate": "Run the built-in simulator of the service.",
    "keys": "Import, list, revoke, rotate and verify API keys.",
    "check": "Validate a configuration.",
    "operations": "Show what every legacy operation becomes.",
    "ids": "Import ids that clients know objects by.",
    "batches": "List batches that were abandoned at the service.",
    "doctor": "Try the configured service, by reads only.",
}


class _Commands(click.Group):
    """Commands are imported when they run, so that ``--help`` stays fast."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"gateway.cli.{name}"), name)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="payout-gateway", prog_name="payout-gateway")
def gateway() -> None:
    """payout-gateway stands where a payout service's legacy interface stood."""


def main() -> None:
    """Runs a command; a mistake is one line on stderr and exit code 2."""
    try:
        sys.exit(gateway.main(prog_name="payout-gateway", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        path = error.ctx.command_path if error.ctx else "payout-gateway"
        click.echo(f"payout-gateway: no command given; see `{path} --help`", err=True)
        sys.exit(2)
    except click.ClickException as error:
        code = error.exit_code if isinstance(error, Mistake) else 2
        click.echo(f"payout-gateway: {' '.join(error.format_message().split())}", err=True)
        sys.exit(code)
    except click.Abort:
        sys.exit(130)
