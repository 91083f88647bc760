"""The command line: one group, one module a command, each loaded when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from difflib import get_close_matches
from typing import NoReturn

import click

from gateway.cli.errors import Mistake
from gateway.observability import logs

COMMANDS = {
    "serve": "Run the gateway.",
    "simulate": "Run the built-in simulator of the service.",
    "keys": "Import, list, revoke, rotate and verify API keys.",
    "check": "Validate a configuration.",
    "operations": "Show what every legacy operation becomes.",
    "explain": "Show what one legacy request becomes.",
    "openapi": "Print the legacy interface as an OpenAPI document.",
    "modes": "Say which service answers a key's requests.",
    "cutover": "Bring over what only the legacy service knows.",
    "ids": "Import ids that clients know objects by.",
    "batches": "List batches that were abandoned at the service.",
    "report": "Show who still uses what.",
    "migrate-guide": "Write a page for the developers of what a key still uses.",
    "brownout": "Refuse chosen requests for a while, on purpose.",
    "compare": "Ask two services the same, and tell how they differ.",
    "recording": "Show what was recorded of clients' requests.",
    "doctor": "Try the configured service, by reads only.",
    "writes": "List writes of unknown outcome, and say what became of one.",
    "freeze": "Stop writes at once; reads go on.",
    "unfreeze": "Let writes begin again.",
    "trace": "Show everything known of an id.",
    "reconcile": "Compare the ledger with the service, by reads only.",
    "index": "Have running gateways drop the index of recipients.",
    "erase": "Forget what is kept of a recipient.",
    "backup": "Save the state and the key file.",
    "restore": "Put a saved state and key file in their place.",
}
_BESIDE = {"unfreeze": "freeze", "restore": "backup", "compare": "comparing"}
"""Commands that stand in the module of another."""


class _Commands(click.Group):
    """Commands are imported when they run, so that ``--help`` stays fast."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        spelled = name.replace("-", "_")
        module = importlib.import_module(f"gateway.cli.{_BESIDE.get(name, spelled)}")
        command: click.Command = getattr(module, spelled)
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
        sys.exit(_run())
    except click.exceptions.NoArgsIsHelpError as error:
        path = error.ctx.command_path if error.ctx else "payout-gateway"
        click.echo(f"payout-gateway: no command given; see `{path} --help`", err=True)
        sys.exit(2)
    except click.ClickException as error:
        code = error.exit_code if isinstance(error, Mistake) else 2
        click.echo(f"payout-gateway: {_one_line(error)}", err=True)
        sys.exit(code)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:  # whoever reads has had enough
        _leave(1)
    except OSError as error:
        # Its number alone: a file that it names may be a secret's.
        click.echo(f"payout-gateway: {_why_stopped(error)}", err=True)
        _leave(2)
    except Exception as error:  # noqa: BLE001 - its text, and a traceback's, may hold what was read
        # As logs.told: a module beside this one is called told, and would take the name's place.
        raised_at = logs.describe_exception(error)["exception.stacktrace"].splitlines()[-1]
        kind = type(error).__name__
        click.echo(f"payout-gateway: a fault of its own: {kind} at {raised_at}", err=True)
        sys.exit(70)


def _run() -> int | str | None:
    """The exit code, when all that was said is out."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal has no letter for is written as its number, and ends nothing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int | str | None = (
            gateway.main(prog_name="payout-gateway", standalone_mode=False) or 0
        )
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    return code


def _one_line(error: click.ClickException) -> str:
    """What is wrong; of what was typed, also what may have been meant, and where it says more."""
    said = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return said
    if isinstance(error, click.exceptions.NoSuchCommand):
        said = f"No such command '{error.command_name}'."
        group = error.ctx.command
        known = group.list_commands(error.ctx) if isinstance(group, click.Group) else []
        if meant := get_close_matches(error.command_name, known, 1):
            said += f" Did you mean '{meant[0]}'?"
    return f"{said.removesuffix('.')}; see `{error.ctx.command_path} --help`"


def _why_stopped(error: OSError) -> str:
    said = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno == errno.ENOSPC:
        return f"{said}: the output is not whole"
    return f"{said}: it was not finished (at {logs.describe_exception(error)['raised_at'][-1]})"


def _leave(code: int) -> NoReturn:
    """Without a last try to write what cannot be written, which Python would tell of."""
    sys.stderr.flush()
    os._exit(code)
