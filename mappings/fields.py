"""Field tables: what becomes of each field of an object, both ways.

A table is checked when it is made. Every field of the legacy shapes stands in it exactly once,
translated or set apart with a reason, and every field it names exists in its shape. A mistyped
name would send nothing, silently; here it stops the program from starting.
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
    """Fields that have one name and one meaning on both sides."""
    return tuple(Row(name, name, name, sends=True) for name in names)


def renamed(legacy: str, current: str, *, shown: str | None = None) -> tuple[Row, ...]:
    """``shown`` where answers of the current interface use yet another name."""
    return (Row(legacy, current, shown or current, sends=True),)


def nested(name: str, table: Fields) -> tuple[Row, ...]:
    return (Row(name, name, name, sends=True, nested=table),)


def read_only(*names: str, why: str) -> tuple[Row, ...]:
    """Shown as the service gives it; dropped where a client sends it back."""
    return tuple(Row(name, name, name, sends=False, why=why) for name in names)


def by_hand(legacy: str, current: str | None = None, *, why: str) -> tuple[Row, ...]:
    """Code beside the table sets it; ``current`` is where it goes, for the names of errors."""
    return (Row(legacy, current, None, sends=False, why=why),)


def dropped(*names: str, why: str) -> tuple[Row, ...]:
    return tuple(Row(name, None, None, sends=False, why=why) for name in names)


class Mistabled(Exception):
    """A field table that does not fit the shapes it translates between."""


class Fields:
    """One object's table.

    ``legacy`` are the shapes it has there (as answered, as sent), ``current`` those here.
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
        answered = [self._by_legacy[name] for name in get_type_hints(legacy[0])]
        # No field's name is None: what no field of the service shows is null.
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
        """The current fields that answers show."""
        return tuple(name for name in self._shown if name is not None)

    def to_current(self, sent: Mapping[str, JSON]) -> dict[str, JSON]:
        """The fields that travel as they are, renamed; values are not touched."""
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
        """Exactly the fields that the legacy document has, in its order; null where none came."""
        shown = dict(zip(self._names, map(given.get, self._shown), strict=True))
        for name, table in self._nested:
            if isinstance(value := shown[name], dict):
                shown[name] = table.to_legacy(value)
        return shown

    def sent_as(self, prefix: str = "") -> dict[str, str]:
        """Current field to the client's own, full names, for ``Call.sent_as``."""
        names: dict[str, str] = {}
        for row in self.rows:
            if row.current is None or (not row.sends and not row.why):
                continue
            names.setdefault(row.current, prefix + row.legacy)
            if row.nested:
                inner = row.nested.sent_as(f"{prefix}{row.legacy}.")
                names |= {f"{row.current}.{name}": field for name, field in inner.items()}
        return names
