"""The ``--config`` option that commands share."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.errors import CommandError
from gateway.config.settings import DEFAULT_CONFIG_FILE, ConfigurationError, Settings, load_settings


def load_command_settings(path: Path | None) -> Settings:
    """Loads a configuration file, by default gateway.toml if it exists. Raises CommandError."""
    try:
        return load_settings(
            path or (DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.exists() else None)
        )
    except ConfigurationError as error:
        raise CommandError(str(error)) from None


def _convert_config_path_to_settings(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> Settings:
    return load_command_settings(path)


config_option = click.option(
    "--config",
    "settings",
    type=click.Path(dir_okay=False, path_type=Path),
    # Loaded by the option, so that an invalid configuration fails before the command runs.
    callback=_convert_config_path_to_settings,
    help="Configuration file. Default: gateway.toml if it exists, else environment variables only.",
)
