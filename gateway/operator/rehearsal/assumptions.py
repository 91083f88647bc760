"""What the translation presumes of a service: the rows of ``assumptions.md``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

HOLDS, HANDLED, NOTICED, NOT_TRIED = (
    "holds",
    "differs: handled",
    "differs: clients would notice",
    "not tried",
)
"""The verdicts of an assumption."""

Setting = tuple[str, str, str | bool]
"""Section, key and value of ``gateway.toml``."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """One row. ``effect`` is what the gateway does if the service differs; ``setting`` is offered
    then. ``operations`` rest on it in the coverage table (``Operation.assumption``).
    """

    name: str
    statement: str
    effect: str
    is_noticed: bool
    operations: tuple[str, ...]
    setting: Setting | None


def _parse_row(line: str) -> Assumption:
    name, statement, effect, noticed, operations, setting = (
        cell.strip() for cell in line.strip("|\n").split("|")
    )
    return Assumption(
        name,
        statement,
        effect,
        noticed == "yes",
        tuple(filter(None, operations.split(", "))),
        _parse_setting(setting.strip("`")) if setting else None,
    )


def _parse_setting(text: str) -> Setting:
    key_path, _, value = text.partition(" = ")
    section, _, key = key_path.partition(".")
    return section, key, json.loads(value)


def _load_rows() -> tuple[Assumption, ...]:
    text = files("gateway.operator.rehearsal").joinpath("assumptions.md").read_text("utf-8")
    _header, _rule, *rows = (line for line in text.splitlines() if line.startswith("|"))
    return tuple(map(_parse_row, rows))


ASSUMPTIONS = _load_rows()
"""In the order of the report."""
