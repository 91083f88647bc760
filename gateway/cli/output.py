"""Runs a command's coroutine without log output, shows its progress, and prints tables."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli import CommandError
from gateway.config import OperatorError
from gateway.config.settings import DEFAULT_CONFIG_FILE, Settings, has_setting_variable
from gateway.observability.plurals import format_time

if TYPE_CHECKING:
    from gateway.operator import ProgressCallback
    from gateway.storage import Store

Done = TypeVar("Done")

MAX_LINE_CHARACTERS = 160
"""Line width of tables with states and sentences, if stdout is not a terminal."""


def run_to_completion(work: Coroutine[Any, Any, Done], doing: str = "") -> Done:
    """Runs a command's coroutine. Raises CommandError for an error that the operator can read.

    ``doing`` labels a progress indicator. Leave it empty for work that prompts or prints.
    """
    try:
        with _disable_logging(), show_progress(doing) if doing else nullcontext():
            return asyncio.run(_run_without_loop_messages(work))
    except OperatorError as error:
        raise CommandError(str(error)) from None


async def _run_without_loop_messages(work: Coroutine[Any, Any, Done]) -> Done:
    # The loop reports what a library left behind when it is collected, maybe after this command.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    return await work


def run_with_store(
    settings: Settings, work: Callable[[Store], Coroutine[Any, Any, Done]], doing: str = ""
) -> Done:
    """Opens the state, which has to exist, and runs a coroutine with it."""
    from gateway.storage import StoreUnavailable, open_store

    async def open_and_run() -> Done:
        try:
            async with open_store(settings.state, create=False) as store:
                return await work(store)
        except StoreUnavailable as error:
            if settings.config_file.path or has_setting_variable():
                raise
            # The likely cause: the default settings were used.
            raise CommandError(
                f"there is no {DEFAULT_CONFIG_FILE} in this directory (`payout-gateway init` writes "
                f"one), and {error}"
            ) from None

    return run_to_completion(open_and_run(), doing)


@contextmanager
def _disable_logging() -> Iterator[None]:
    """Disables logging: a command reports results and errors itself."""
    import structlog

    config = structlog.get_config()
    # No event of the gateway is critical.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)  # of libraries, with tracebacks
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        structlog.configure(**config)


@contextmanager
def show_progress(label: str) -> Iterator[ProgressCallback]:
    """Yields the callback that shows the progress of a command; only on a terminal, on stderr."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return

    def print_progress(done: int, total: int | None) -> None:
        click.echo(f"\r{label}: {done}" + (f" of {total}" if total else ""), err=True, nl=False)

    click.echo(f"{label} …", err=True, nl=False)
    try:
        yield print_progress
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)  # clears the line


def print_table(
    headers: Sequence[str],
    rows: Iterable[Iterable[object]],
    colours: Mapping[str, str] | None = None,
) -> None:
    """Prints rows in aligned columns. Times are formatted, and None is shown as a dash.

    ``colours`` maps the texts of states to their colours on a terminal. Cells are wrapped if a row
    is longer than the terminal, or elsewhere, in a table with states, than ``MAX_LINE_CHARACTERS``.
    On a terminal that is too narrow, each row is printed as a list of fields, so that nothing is
    cut off.
    """
    is_terminal = sys.stdout.isatty()
    widest = MAX_LINE_CHARACTERS if colours else None
    if is_terminal:
        widest = shutil.get_terminal_size().columns
    lines = [[*headers], *([*map(_format_cell, row)] for row in rows)]
    if is_terminal and _compute_minimum_table_width(lines) > (widest or 0):
        pairs = ((*zip(headers, row, strict=True), ("", "")) for row in lines[1:])
        lines = [[header, cell] for row in pairs for header, cell in row if cell or not header]
    has_colours = is_terminal and "NO_COLOR" not in os.environ
    widths = _compute_column_widths(lines, widest)
    for row in lines:
        for line in _wrap_row(row, widths):
            cells = [*map(str.ljust, line, widths)]
            for index, cell in enumerate(row):
                if has_colours and (colour := (colours or {}).get(cell)):
                    cells[index] = click.style(cells[index], fg=colour)
            click.echo("  ".join(cells).rstrip())


def _format_cell(value: object) -> str:
    if value is None or isinstance(value, datetime):
        return format_time(value)
    return escape_control_characters(str(value))


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


def _compute_minimum_table_width(rows: list[list[str]]) -> int:
    """Returns the width of the narrowest table that breaks no word."""
    columns = zip(*rows, strict=True)
    words = [
        max(len(word) for cell in column for word in cell.split() or [""]) for column in columns
    ]
    return sum(words) + 2 * (len(words) - 1)


def escape_control_characters(text: str) -> str:
    """Replaces control characters: a service may send terminal escape sequences."""
    return "".join(character if character.isprintable() else "·" for character in text)
