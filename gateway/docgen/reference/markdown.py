"""Formats Markdown tables and inline code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def format_markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _line(heads)
    yield _line(["---"] * len(heads))
    yield from (_line(row) for row in rows)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def format_inline_code(text: str | None) -> str:
    return f"`{text}`" if text else "-"
