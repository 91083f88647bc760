"""The requests of a rehearsal: the table ``scenario.md``, and the bodies that it names."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple


class Step(NamedTuple):
    """A row of ``scenario.md``, with its cells."""

    chapter: str
    row: str
    request: str
    body: str
    answer: str
    saves: str


def read_data(name: str) -> str:
    return files("gateway.operator.rehearsal").joinpath(name).read_text("utf-8")


def load_table(name: str) -> list[list[str]]:
    """Loads the cells of a Markdown table, without its header."""
    _header, _rule, *rows = (line for line in read_data(name).splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in rows]


def _expand_choices(cells: list[str]) -> Iterator[Step]:
    """Yields a step for each choice: the first one of all angle brackets, the second one…"""
    choices = [text.split() for text in re.findall("<(.*?)>", "".join(cells))] or [[""]]
    for number in range(len(choices[0])):
        yield Step(*(re.sub("<(.*?)>", lambda m: m[1].split()[number], cell) for cell in cells))  # noqa: B023


STEPS = [step for cells in load_table("scenario.md") for step in _expand_choices(cells)]
CHAPTERS = [*dict.fromkeys(step.chapter for step in STEPS)]
LISTS, START = "lists", "start"
"""The chapters that are not always run."""

BODIES: dict[str, dict[str, Any]] = json.loads(read_data("bodies.json"))
BODIES |= {f"{name}-payout": {"payout": body} for name, body in BODIES.items() if "primary" in body}
"""The parts of bodies. Addresses are of a reserved domain (RFC 2606): the service sends mail.
Amounts are above the usual minimum of a bank transfer."""
