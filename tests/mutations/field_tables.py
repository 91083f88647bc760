"""Field tables with one fault, which a mutant has in place of the right one."""

from __future__ import annotations

from typing import Any
from unittest import mock

from mappings import fields
from mappings.fields import FieldRow, FieldTable


def build_faulty_table(
    *shapes: Any, row: str, changes: dict[str, Any], **groups: Any
) -> FieldTable:
    """Builds a table in which ``row`` has other values."""
    build_right_rows = fields._build_rows

    def build_rows(**groups: Any) -> tuple[FieldRow, ...]:
        return tuple(
            right._replace(**changes) if right.legacy_name == row else right
            for right in build_right_rows(**groups)
        )

    with mock.patch.object(fields, "_build_rows", build_rows):
        return FieldTable(*shapes, **groups)
