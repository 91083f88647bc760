"""What the translation presumes of a service: the rows of ``assumptions.md``."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple


class Assumption(NamedTuple):
    """The cells of a row.

    ``effect`` is what the gateway does if the service differs, ``is_noticed`` is "yes" or empty,
    ``operations`` are those that name the row in the coverage table. ``setting`` is offered if the
    service differs: a line of TOML. ``expected`` is a call and the begin of its result; the module
    ``checks`` has the rows that need more.
    """

    name: str
    statement: str
    effect: str
    is_noticed: str
    operations: str
    setting: str
    expected: str


_TEXT = files("gateway.operator.rehearsal").joinpath("assumptions.md").read_text("utf-8")
_HEADER, _RULE, *_ROWS = (line for line in _TEXT.splitlines() if line.startswith("|"))

ASSUMPTIONS = tuple(Assumption(*(cell.strip() for cell in line[1:-1].split("|"))) for line in _ROWS)
"""In the order of the report."""
