"""How commands run and what they print: no log lines between, tables that pipe well."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click

from gateway.cli.mistakes import Mistake
from gateway.settings import Misconfigured

Done = TypeVar("Done")


def completed(work: Coroutine[Any, Any, Done]) -> Done:
    """Runs a command's work; what cannot be used is told as a Mistake."""
    from gateway.store import StoreUnavailable

    try:
        with _quiet():
            return asyncio.run(work)
    except (StoreUnavailable, Misconfigured) as error:
        raise Mistake(str(error)) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines between a command's own: what they would say is in its answer."""
    import structlog

    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    logging.disable(logging.CRITICAL)  # libraries have their own, and tracebacks with them
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        structlog.configure(**before)


def _drop(_logger: object, _method: str, _event: object) -> NoReturn:
    from structlog import DropEvent

    raise DropEvent


def table(heads: list[str], rows: list[list[str]]) -> None:
    """A ruled table on a terminal, aligned text elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        ruled = Table(*heads)
        for row in rows:
            ruled.add_row(*(Text(cell) for cell in row))  # as Text, [ ] in a name are no markup
        Console().print(ruled)
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in [heads, *rows]:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())
