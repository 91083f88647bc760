"""Runs a command's coroutine without log output, and prints tables."""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from gateway.cli.errors import CommandError
from gateway.cli.progress import show_progress
from gateway.config.settings import ConfigurationError, Settings

if TYPE_CHECKING:
    from gateway.storage import Store

Done = TypeVar("Done")


def run_to_completion(work: Coroutine[Any, Any, Done], doing: str = "") -> Done:
    """Runs a command's coroutine; a state, configuration or key that cannot be used is a
    CommandError.

    ``doing`` labels a progress indicator. Leave it empty for work that prompts or prints.
    """
    from gateway.auth.key_rows import KeyNotFound
    from gateway.storage import StoreUnavailable

    try:
        with _disable_logging(), show_progress(doing) if doing else nullcontext():
            return asyncio.run(work)
    except (StoreUnavailable, ConfigurationError, KeyNotFound) as error:
        raise CommandError(str(error)) from None


def run_with_store(
    settings: Settings, work: Callable[[Store], Coroutine[Any, Any, Done]], doing: str = ""
) -> Done:
    """Opens the state, which has to exist, and runs a coroutine with it."""
    from gateway.storage import open_store

    async def open_and_run() -> Done:
        async with open_store(settings.state, create=False) as store:
            return await work(store)

    return run_to_completion(open_and_run(), doing)


@contextmanager
def _disable_logging() -> Iterator[None]:
    """Disables logging: a command reports results and errors itself."""
    import structlog

    config = structlog.get_config()
    # structlog has no switch to turn it off, so a processor drops every event.
    structlog.configure(processors=[_drop_event])
    logging.disable(logging.CRITICAL)  # of libraries, with tracebacks
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        structlog.configure(**config)


def _drop_event(_logger: object, _method: str, _event: object) -> NoReturn:
    from structlog import DropEvent

    raise DropEvent


def print_table(
    headers: list[str],
    rows: list[list[str]],
    colours: Mapping[str, str] | None = None,
    widest: int | None = None,
) -> None:
    """Prints a ruled table on a terminal, else aligned text. ``colours`` maps cell texts to styles.

    On a terminal that is too narrow, each row is printed as a list of fields, so that nothing is
    cut off. Elsewhere, cells are wrapped if a row is longer than ``widest`` characters.
    """
    # Piped output has neither colours nor frames, so that other programs can parse it.
    if not sys.stdout.isatty():
        widths = _compute_column_widths([headers, *rows], widest)
        for row in [headers, *rows]:
            for line in _wrap_row(row, widths):
                click.echo("  ".join(map(str.ljust, line, widths)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def style_text(cell: str) -> Text:  # as Text, so that [ ] in a name is not markup
        return Text(cell, (colours or {}).get(cell, ""), overflow="fold")

    console = Console()
    if _compute_minimum_table_width(headers, rows) <= console.width:
        ruled = Table(*headers)
        for row in rows:
            ruled.add_row(*map(style_text, row))
        console.print(ruled)
        return
    for row in rows:
        lines = Table.grid(padding=(0, 2))
        for head, cell in zip(headers, row, strict=True):
            if cell:
                lines.add_row(Text(head, "bold"), style_text(cell))
        console.print(lines)
        console.print()


def _compute_column_widths(rows: list[list[str]], widest: int | None) -> list[int]:
    """Returns the column widths. The widest columns shrink until a row fits ``widest``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while widest is not None and sum(widths) + 2 * (len(widths) - 1) > widest:
        widths[widths.index(max(widths))] -= 1
    return widths


def _wrap_row(row: list[str], widths: list[int]) -> Iterator[tuple[str, ...]]:
    """Yields the lines of a row. Long words are not broken, so that they can be copied."""
    cells = [
        textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
        if len(cell) > width
        else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    yield from zip_longest(*cells, fillvalue="")


def _compute_minimum_table_width(headers: list[str], rows: list[list[str]]) -> int:
    """Returns the width of the narrowest ruled table that breaks no word."""
    columns = zip(headers, *rows, strict=True)
    words = [
        max(len(word) for cell in column for word in cell.split() or [""]) for column in columns
    ]
    # Each cell has a space on both sides and a line after it.
    return sum(words) + 3 * len(words) + 1
