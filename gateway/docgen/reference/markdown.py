"""Formats Markdown tables and inline code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def format_markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _format_row(headers)
    yield _format_row(["---"] * len(headers))
    yield from (_format_row(row) for row in rows)
    yield ""


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def format_inline_code(text: str | None) -> str:
    return f"`{text}`" if text else "-"
