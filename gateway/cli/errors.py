"""The error that commands raise: one line on stderr, exit code 2."""

from __future__ import annotations

import click


class CommandError(click.ClickException):
    exit_code = 2
