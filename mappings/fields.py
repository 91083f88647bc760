"""Field tables: the translation of each field of an object, in both directions.

A table is checked when it is built. It must contain every field of the legacy shapes exactly once,
either translated or excluded with a reason, and every field that it names must exist in its shape.
Otherwise a mistyped name would silently send nothing; this way the program does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from mappings.grammar import JSON


@dataclass(frozen=True, slots=True)
class Row:
    legacy: str
    current: str | None
    shown: str | None
    sends: bool
    nested: Fields | None = None
    why: str = ""


def same(*names: str) -> tuple[Row, ...]:
    """Fields with the same name and meaning on both sides."""
    return tuple(Row(name, name, name, sends=True) for name in names)


def renamed(legacy: str, current: str, *, shown: str | None = None) -> tuple[Row, ...]:
    """A field with another name; ``answer_name`` if current answers use a third one."""
    return (Row(legacy, current, shown or current, sends=True),)


def nested(name: str, table: Fields) -> tuple[Row, ...]:
    return (Row(name, name, name, sends=True, nested=table),)


def read_only(*names: str, why: str) -> tuple[Row, ...]:
    """Fields that answers show as the service returns them; dropped if a client sends them."""
    return tuple(Row(name, name, name, sends=False, why=why) for name in names)


def by_hand(legacy: str, current: str | None = None, *, why: str) -> tuple[Row, ...]:
    """A field that code outside the table translates; ``current`` serves to map error fields."""
    return (Row(legacy, current, None, sends=False, why=why),)


def dropped(*names: str, why: str) -> tuple[Row, ...]:
    return tuple(Row(name, None, None, sends=False, why=why) for name in names)


class Mistabled(Exception):
    """A field table does not match the shapes that it translates between."""


class Fields:
    """The field table of one object.

    ``legacy`` are its legacy shapes, that of answers first, then those of requests; ``current`` are
    its shapes in the current interface.
    """

    def __init__(
        self, legacy: tuple[type, ...], current: tuple[type, ...], *rows: tuple[Row, ...]
    ) -> None:
        self.rows = tuple(row for some in rows for row in some)
        self._check(
            {name for shape in legacy for name in get_type_hints(shape)},
            {name for shape in current for name in get_type_hints(shape)},
        )
        self._by_legacy = {row.legacy: row for row in self.rows}
        # Precomputed, because every object of every answer is translated with them.
        answered = [self._by_legacy[name] for name in get_type_hints(legacy[0])]
        # Looking up None finds nothing, so a legacy field without a source becomes null.
        self._names = [row.legacy for row in answered]
        self._shown: list[Any] = [row.shown for row in answered]
        self._nested = [(row.legacy, row.nested) for row in answered if row.nested]

    def _check(self, legacy: set[str], current: set[str]) -> None:
        names = [row.legacy for row in self.rows]
        targets = {name for row in self.rows for name in (row.current, row.shown) if name}
        faults = [
            *(f"{name}: no row" for name in sorted(legacy - set(names))),
            *(f"{name}: not in the legacy shape" for name in sorted(set(names) - legacy)),
            *(f"{name}: more than one row" for name in sorted(set(names)) if names.count(name) > 1),
            *(f"{name}: not in the current shape" for name in sorted(targets - current)),
        ]
        if faults:
            raise Mistabled("; ".join(faults))

    @property
    def reads(self) -> tuple[str, ...]:
        """The current fields that legacy answers are built from."""
        return tuple(name for name in self._shown if name is not None)

    def to_current(self, sent: Mapping[str, JSON]) -> dict[str, JSON]:
        """Renames the fields that are sent; values stay unchanged."""
        return dict(self._sent(sent))

    def _sent(self, sent: Mapping[str, JSON]) -> Iterator[tuple[str, JSON]]:
        for name, value in sent.items():
            row = self._by_legacy[name]
            if not row.sends or row.current is None:
                continue
            if row.nested and isinstance(value, dict):
                yield row.current, row.nested.to_current(value)
            else:
                yield row.current, value

    def to_legacy(self, given: Mapping[str, JSON]) -> dict[str, JSON]:
        """Builds exactly the fields of the legacy document, in its order; null if not given."""
        shown = dict(zip(self._names, map(given.get, self._shown), strict=True))
        for name, table in self._nested:
            if isinstance(value := shown[name], dict):
                shown[name] = table.to_legacy(value)
        return shown

    def sent_as(self, prefix: str = "") -> dict[str, str]:
        """Maps current field paths to the client's own, for ``Call.field_map``."""
        names: dict[str, str] = {}
        for row in self.rows:
            if row.current is None or (not row.sends and not row.why):
                continue
            # Several legacy fields may become one current field; errors name the first of the table.
            names.setdefault(row.current, prefix + row.legacy)
            if row.nested:
                inner = row.nested.sent_as(f"{prefix}{row.legacy}.")
                names |= {f"{row.current}.{name}": field for name, field in inner.items()}
        return names
