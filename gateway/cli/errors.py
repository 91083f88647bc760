"""What a command says when it cannot go on: one clear line on stderr, exit 2."""

from __future__ import annotations

import click


class Mistake(click.ClickException):
    exit_code = 2
