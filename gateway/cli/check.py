"""`payout-gateway check`: validates a configuration and reports problems by line and key."""

import sys
from pathlib import Path

import click

from gateway.cli import CommandError, options
from gateway.config.settings import (
    DEFAULT_CONFIG_FILE,
    ConfigurationError,
    has_setting_variable,
    load_settings,
)
from gateway.operator.preflight import (
    check_settings_are_runnable,
    list_key_file_warnings,
    list_placeholder_url_warnings,
)


@click.command()
@click.option(
    "--config",
    type=options.FILE,
    help="The file to validate. Default: gateway.toml if it exists, else environment "
    "variables only.",
)
@options.json_option
def check(*, config: Path | None, as_json: bool) -> None:
    """Validate a configuration. Nothing is contacted.

    Warns about placeholder addresses from the example file, passwords in the file, and a missing
    or unusable key file. Exit code 0: valid. 1: problems were found. 2: there is no such file.
    """
    problems, warnings, is_valid = [], [], False
    # The same default as that of `serve`, so that both read the same file.
    file = config or (
        DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.exists() or not has_setting_variable() else None
    )
    try:
        settings = load_settings(file)
        is_valid = True
        check_settings_are_runnable(settings)
        # Errors come first: warnings about a configuration that cannot run would distract.
        warnings = [
            *list_placeholder_url_warnings(settings),
            *settings.config_file.find_url_password_problems(),
            *list_key_file_warnings(settings),
        ]
    except ConfigurationError as error:
        problems = error.problems
    is_missing = bool(file and not file.exists())
    if as_json:
        options.print_json({"ok": not problems, "problems": problems, "warnings": warnings})
    # An error of the command, not a finding about the file.
    elif is_missing:
        raise CommandError(problems[0])
    else:
        for line in (*problems, *(f"Warning: {each}" for each in warnings)):
            click.echo(line, err=True)
        if problems and not is_valid:
            click.echo("Run this again then: other checks need valid settings.", err=True)
        if not problems:
            verdict = "valid, with warnings" if warnings else "valid"
            click.echo(f"{file or 'environment variables'}: {verdict}")
    # Without a file nothing was checked; other commands report that with 2 too.
    if problems:
        sys.exit(2 if is_missing else 1)
