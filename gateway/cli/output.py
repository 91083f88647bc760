"""How commands run and what they print: no log lines between, tables that pipe well."""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

import click

from gateway.cli.errors import Mistake
from gateway.cli.progress import show_progress
from gateway.config.settings import Misconfigured

Done = TypeVar("Done")


def run_to_completion(work: Coroutine[Any, Any, Done], doing: str = "") -> Done:
    """Runs a command's work; what cannot be used is told as a Mistake.

    ``doing`` is said, with a bar, of what may take its time and does not ask or tell meanwhile.
    """
    from gateway.storage import StoreUnavailable

    try:
        with _quiet(), show_progress(doing) if doing else nullcontext():
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


def print_table(
    heads: list[str],
    rows: list[list[str]],
    colours: Mapping[str, str] | None = None,
    widest: int | None = None,
) -> None:
    """A ruled table on a terminal, aligned text elsewhere; ``colours`` are by what a cell says.

    On a terminal that is too narrow for it a row is a few lines: nothing is cut off. Elsewhere each
    row is one line, or where that is wider than ``widest`` a few, its cells going on below themselves.
    """
    if not sys.stdout.isatty():
        widths = _widths([heads, *rows], widest)
        for row in [heads, *rows]:
            for line in _folded(row, widths):
                click.echo("  ".join(map(str.ljust, line, widths)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def text(cell: str) -> Text:  # as Text, [ ] in a name are no markup
        return Text(cell, (colours or {}).get(cell, ""), overflow="fold")

    console = Console()
    if _narrowest(heads, rows) <= console.width:
        ruled = Table(*heads)
        for row in rows:
            ruled.add_row(*map(text, row))
        console.print(ruled)
        return
    for row in rows:
        lines = Table.grid(padding=(0, 2))
        for head, cell in zip(heads, row, strict=True):
            if cell:
                lines.add_row(Text(head, "bold"), text(cell))
        console.print(lines)
        console.print()


def _widths(rows: list[list[str]], widest: int | None) -> list[int]:
    """Of the columns; the widest of them give way."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while widest is not None and sum(widths) + 2 * (len(widths) - 1) > widest:
        widths[widths.index(max(widths))] -= 1
    return widths


def _folded(row: list[str], widths: list[int]) -> Iterator[tuple[str, ...]]:
    """Its lines; a word that is too long for its column sticks out, and can be copied."""
    cells = [
        textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
        if len(cell) > width
        else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    yield from zip_longest(*cells, fillvalue="")


def _narrowest(heads: list[str], rows: list[list[str]]) -> int:
    """How wide a ruled table is at least that breaks no word."""
    columns = zip(heads, *rows, strict=True)
    words = [
        max(len(word) for cell in column for word in cell.split() or [""]) for column in columns
    ]
    return sum(words) + 3 * len(words) + 1
