"""Field tables: the translation of each field of an object, in both directions.

A table is checked when it is built. It must contain every field of the legacy shapes exactly once,
either translated or excluded with a reason, and every field that it names must exist in its shape.
A mistyped name would silently send nothing; with this check the program does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from mappings.effects import JSON


class FieldRow(NamedTuple):
    """One field; ``reason`` says why it is not sent, and is empty if it is."""

    legacy_name: str
    current_name: str | None
    answer_name: str | None
    nested_table: FieldTable | None = None
    reason: str = ""


class FieldTableError(Exception):
    """A field table does not match the shapes that it translates between."""


def _build_rows(
    *,
    same_names: Sequence[str] = (),
    renamed: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    nested: Mapping[str, FieldTable] = MappingProxyType({}),
    read_only: Mapping[str, str] = MappingProxyType({}),
    set_in_code: Mapping[str, str | tuple[str, str]] = MappingProxyType({}),
) -> tuple[FieldRow, ...]:
    return (
        *(FieldRow(name, name, name) for name in same_names),
        *(FieldRow(name, *names) for name, names in renamed.items()),
        *(
            FieldRow(name, current_name, None, None, reason)
            for name, value in set_in_code.items()
            for current_name, reason in [(None, value) if isinstance(value, str) else value]
        ),
        *(FieldRow(name, name, name, None, reason) for name, reason in read_only.items()),
        *(FieldRow(name, name, name, table) for name, table in nested.items()),
    )


class FieldTable:
    """The field table of one object.

    ``legacy`` are its legacy shapes, that of answers first, then those of requests; ``current`` are
    its shapes in the current interface. Each field is in one of these ``fields``:

    - ``same_names``: it has the same name and meaning on both sides
    - ``renamed``: its current name in requests and in responses
    - ``nested``: the table of the object that it contains
    - ``read_only``: answers show it unchanged; if a client sends it, it is dropped; with the reason
    - ``set_in_code``: code outside the table translates it; with the reason, and before that the
      current field that is made of it, if errors may name that
    """

    def __init__(self, legacy: tuple[type, ...], current: tuple[type, ...], **fields: Any) -> None:
        self.rows = _build_rows(**fields)
        self._check_rows_match_shapes(
            {name for shape in legacy for name in get_type_hints(shape)},
            {name for shape in current for name in get_type_hints(shape)},
        )
        self._by_legacy = {row.legacy_name: row for row in self.rows}
        # Precomputed, because every object of every answer is translated with them.
        answer_rows = [self._by_legacy[name] for name in get_type_hints(legacy[0])]
        self.current_fields_of_answer = {row.answer_name for row in answer_rows} - {None}
        """The current fields that legacy answers are built from."""
        self._legacy_names = self._map_to_legacy_names()
        self._field_maps: dict[str, dict[str, str]] = {}
        """Results of ``map_field_names_to_client``, by prefix, of which there are few."""
        self.translate_to_legacy = _compile_answer_function(answer_rows)
        """Builds exactly the legacy document's fields, in its order; null if there is no value."""

    def _check_rows_match_shapes(self, legacy: set[str], current: set[str]) -> None:
        names = [row.legacy_name for row in self.rows]
        targets = {
            name for row in self.rows for name in (row.current_name, row.answer_name) if name
        }
        faults = [
            *(f"{name}: no row" for name in sorted(legacy - set(names))),
            *(f"{name}: not in the legacy shape" for name in sorted(set(names) - legacy)),
            *(f"{name}: more than one row" for name in sorted(set(names)) if names.count(name) > 1),
            *(f"{name}: not in the current shape" for name in sorted(targets - current)),
        ]
        if faults:
            raise FieldTableError("; ".join(faults))

    def translate_to_current(self, fields: Mapping[str, JSON]) -> dict[str, JSON]:
        """Renames the fields that are sent, without changing values."""
        current_fields = {}
        for name, value in fields.items():
            row = self._by_legacy[name]
            # Read-only fields are dropped, not refused: clients send whole objects back.
            if row.reason or row.current_name is None:
                continue
            if row.nested_table and isinstance(value, dict):
                value = row.nested_table.translate_to_current(value)  # noqa: PLW2901
            current_fields[row.current_name] = value
        return current_fields

    def map_field_names_to_client(self, prefix: str = "") -> dict[str, str]:
        """Maps current field paths to the client's own, for ``Call.field_map``."""
        if prefix not in self._field_maps:
            self._field_maps[prefix] = {
                name: prefix + field for name, field in self._legacy_names.items()
            }
        return {**self._field_maps[prefix]}

    def _map_to_legacy_names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for row in self.rows:
            if row.current_name is None:
                continue
            # Several legacy fields may become one current field; errors name the first.
            names.setdefault(row.current_name, row.legacy_name)
            if row.answer_name:  # a service may name the field as its answers do
                names.setdefault(row.answer_name, row.legacy_name)
            if row.nested_table:
                inner = row.nested_table.map_field_names_to_client(f"{row.legacy_name}.")
                names |= {f"{row.current_name}.{name}": field for name, field in inner.items()}
                # Some services name a field without the path to it.
                names = {**inner, **names}
        return names


def _compile_answer_function(
    rows: Sequence[FieldRow],
) -> Callable[[Mapping[str, JSON]], dict[str, JSON]]:
    """Compiles rows to one expression: a loop over them costs more than all their lookups."""
    items, tables = [], dict[str, FieldTable]()
    for number, row in enumerate(rows):
        # A field without a source becomes null.
        value = f"get({row.answer_name!r})" if row.answer_name else "None"
        if row.nested_table:
            tables[f"table_{number}"] = row.nested_table
            nested = f"table_{number}.translate_to_legacy(value)"
            value = f"({nested} if isinstance(value := {value}, dict) else value)"
        items.append(f"{row.legacy_name!r}: {value}")
    source = f"lambda fields: (get := fields.get) and {{{', '.join(items)}}}"
    compiled: Callable[[Mapping[str, JSON]], dict[str, JSON]] = eval(source, tables)  # noqa: S307
    return compiled
