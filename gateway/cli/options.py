"""Options, formats and confirmation prompts that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli import CommandError
from gateway.config.settings import DEFAULT_CONFIG_FILE, Settings, load_settings

if TYPE_CHECKING:
    from gateway.storage import Tenant

FILE = click.Path(dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
merchant_option = click.option("--merchant", metavar="NAME", help="Only this merchant.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
environment_option = click.option(
    "--environment", type=click.Choice(["live", "sandbox"]), help="Only this environment."
)


def require_utf8(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
    """Refuses an id that cannot be text in a database: Python decodes other bytes to surrogates."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise click.BadParameter("not UTF-8 text") from None
    return value


class FullHelpGroup(click.Group):
    """A group whose help shows each command's first sentence in full; click cuts it at 45
    characters.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(200)) for name, command in commands if command]
            )


def print_json(value: Any) -> None:
    """Prints a JSON document; decimals and dates become text.

    Some keys of documents are older than the names in the code; scripts read them.
    """
    click.echo(json.dumps(value, indent=2, default=str))


def require_confirmation(question: str, *, yes: bool) -> None:
    """Asks on stderr unless ``yes``; raises CommandError if the answer is no or there is none."""
    if yes:
        return
    try:
        # On stderr, because stdout has only the result, which scripts may parse.
        is_confirmed = click.confirm(question, err=True)
    except click.Abort:
        # The prompt did not end its line.
        click.echo(err=True)
        raise CommandError(
            "not confirmed: no answer was given. To run without a prompt, add --yes"
        ) from None
    if not sys.stdin.isatty():
        click.echo(err=True)  # on a terminal, the user's Enter ends the line
    if not is_confirmed:
        raise CommandError("nothing was changed")


def select_tenant(
    tenants: Iterable[Tenant], merchant: str | None, environment: str | None, missing: str
) -> Tenant:
    """Returns the tenant that the options name. Raises CommandError, with ``missing`` if none fits."""
    matches = sorted(
        tenant
        for tenant in tenants
        if merchant in (None, tenant.merchant) and environment in (None, tenant.environment)
    )
    if not matches:
        raise CommandError(missing)
    if len(matches) > 1:
        listed = ", ".join(map(str, matches))
        raise CommandError(
            f"several tenants match; choose one with --merchant and --environment: {listed}"
        )
    return matches[0]


def load_command_settings(path: Path | None) -> Settings:
    """Loads a configuration file, by default gateway.toml if it exists. Raises ConfigurationError."""
    return load_settings(path or (DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.exists() else None))


config_option = click.option(
    "--config",
    "settings",
    type=FILE,
    # Loaded by the option, so that an invalid configuration fails before the command runs.
    callback=lambda _context, _option, path: load_command_settings(path),
    help="Configuration file. Default: gateway.toml if it exists, else environment variables only.",
)
