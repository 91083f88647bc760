"""The `payout-gateway` command.

Each subcommand has its own module, imported when it runs, so that ``--help`` does not wait for the
rest of the gateway.
"""

import errno
import gc
import importlib
import io
import os
import sys
from typing import NoReturn

import click

from gateway.config import OperatorError
from gateway.observability import logs

COMMAND_GROUPS = {
    "Set up and run": {
        "init": "Write a first configuration, encryption key and admin token.",
        "check": "Validate a configuration.",
        "migrate": "Create the database's tables or bring them up to date.",
        "doctor": "Check the configuration and the service, with reads only.",
        "rehearse": "Test every assumption at your own sandbox.",
        "serve": "Run the gateway.",
        "simulate": "Run the built-in simulator of the payout service.",
    },
    "API keys and ids": {
        "keys": "Import, list, revoke, rotate and verify API keys.",
        "ids": "Import the ids that clients use for existing objects.",
    },
    "Writes and money": {
        "freeze": "Stop writes immediately; reads continue.",
        "unfreeze": "Resume writes.",
        "writes": "List writes in doubt and record their outcome.",
        "batches": "List superseded batches at the service.",
        "trace": "Show everything known about an id.",
        "reconcile": "Compare the gateway's records with the service, with reads only.",
    },
    "Migrate clients": {
        "operations": "List the legacy operations and the calls that replace them.",
        "explain": "Show the current calls that one legacy request becomes.",
        "report": "Report which keys still use which operations.",
        "modes": "Choose which service answers a key's requests.",
        "cutover": "Import data that only the legacy service has.",
        "brownout": "Schedule planned interruptions of legacy operations.",
        "compare": "Send the same requests to two services and report differences.",
    },
    "Maintain the database": {
        "backup": "Save the state and the key file.",
        "restore": "Restore the state and the key file from a backup.",
        "erase": "Erase personal data of a recipient.",
    },
}
"""The commands by task, each with the sentence that ``--help`` shows."""

COMMANDS = {name: text for group in COMMAND_GROUPS.values() for name, text in group.items()}
_SHARED_MODULES = {
    "batches": "writes",
    "erase": "backup",
    "migrate": "backup",
    "restore": "backup",
    "unfreeze": "freeze",
}


class CommandError(click.ClickException):
    """An error of a command: one line on stderr."""

    exit_code = 2


class _CommandsByTask(click.Group):
    """Imports each command only when it runs, so that ``--help`` stays fast."""

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"gateway.cli.{_SHARED_MODULES.get(name, name)}")
        # By convention, a command has the same name as its function.
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        # One width for all groups, so that the sentences form a column.
        width = max(map(len, COMMANDS))
        for title, commands in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(
    cls=_CommandsByTask,
    # Only their names are used, for suggestions.
    commands=dict.fromkeys(COMMANDS, click.Command(None)),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="payout-gateway", prog_name="payout-gateway")
def gateway() -> None:
    """Serve a payout service's legacy interface on top of its current interface."""


def main() -> None:
    """Runs a command. Prints an error as one line on stderr; exit code 2 unless it names its own."""
    # Importing the gateway allocates 200,000 objects and no garbage: searching for it took a tenth
    # of the start.
    gc.set_threshold(250_000)
    _open_closed_standard_streams()
    try:
        sys.exit(_run_command())
    # Before ClickException, its base class: its message would be the whole help.
    except click.exceptions.NoArgsIsHelpError as error:
        path = error.ctx.command_path if error.ctx else "payout-gateway"
        click.echo(f"payout-gateway: no command given; see `{path} --help`", err=True)
        sys.exit(2)
    except click.ClickException as error:
        code = error.exit_code if isinstance(error, CommandError) else 2
        click.echo(f"payout-gateway: {_format_error(error)}", err=True)
        sys.exit(code)
    except OperatorError as error:
        click.echo(f"payout-gateway: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
    except click.Abort:
        # 128 + SIGINT, as shells report an interrupted command.
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output closed the pipe
        _exit_without_flushing_stdout(1)
    except OSError as error:
        # Not str(error): it contains the path of the file, which may be a secret typed by mistake.
        click.echo(f"payout-gateway: {_describe_os_error(error)}", err=True)
        _exit_without_flushing_stdout(2)
    except Exception as error:  # noqa: BLE001 - its message or traceback may quote input data
        kind = type(error).__name__
        click.echo(
            f"payout-gateway: internal error: {kind} at {_find_raise_location(error)}", err=True
        )
        # EX_SOFTWARE of sysexits.h.
        sys.exit(70)


def _open_closed_standard_streams() -> None:
    """Opens /dev/null for each standard stream that the parent process has closed.

    Otherwise the database might get its descriptor, and what is printed would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # In this order, because each gets the lowest free descriptor, which is its own.
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - open until the end


def _run_command() -> int | str | None:
    """Runs the command, flushes stdout, and returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode is escaped instead of raising an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Not standalone: click would print errors in its own format and exit the process.
        code: int | str | None = (
            gateway.main(prog_name="payout-gateway", standalone_mode=False) or 0
        )
    # Some commands call sys.exit, and stdout has to be flushed before that takes effect.
    except SystemExit as exit_request:
        code = exit_request.code
    # Flushed here, so that a full disk is reported as an error of the command.
    sys.stdout.flush()
    return code


def _format_error(error: click.ClickException) -> str:
    """Formats an error in one line, and adds the ``--help`` to a usage error."""
    message = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return message
    return f"{message.removesuffix('.')}; see `{error.ctx.command_path} --help`"


def _describe_os_error(error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno == errno.ENOSPC:
        return f"{reason}: the output is incomplete"
    return f"{reason}: the command did not finish (at {_find_raise_location(error)})"


def _find_raise_location(error: Exception) -> str:
    location: str = logs.describe_exception(error)["exception.stacktrace"].splitlines()[-1]
    return location


def _exit_without_flushing_stdout(code: int) -> NoReturn:
    """Exits without flushing stdout: Python would print another error about the broken output."""
    sys.stderr.flush()
    # Not sys.exit: at exit, Python would flush stdout again and print a traceback.
    os._exit(code)
