"""Field tables are checked against their shapes; transcripts show what they translate."""

from __future__ import annotations

import pytest
from typing_extensions import TypedDict

from mappings import objects
from mappings.fields import (
    FieldRow,
    FieldTable,
    FieldTableError,
    declare_field_set_in_code,
    declare_nested_table,
    declare_read_only_fields,
    declare_renamed_field,
    declare_same_name_fields,
)


class LegacyStreet(TypedDict, total=False):
    line: str
    town: str


class CurrentStreet(TypedDict, total=False):
    line: str
    city: str


class LegacyAnswerShape(TypedDict, total=False):
    id: str
    name: str
    province: str
    street: LegacyStreet
    status: str


class LegacyBodyShape(TypedDict, total=False):
    name: str
    province: str
    street: LegacyStreet
    colour: str


class CurrentShape(TypedDict, total=False):
    id: str
    holder: str
    region: str
    regionCode: str
    street: CurrentStreet
    state: str


STREET_TABLE = FieldTable(
    (LegacyStreet,),
    (CurrentStreet,),
    declare_same_name_fields("line"),
    declare_renamed_field("town", "city"),
)


def build_row_groups(**changes: tuple[FieldRow, ...] | None) -> tuple[tuple[FieldRow, ...], ...]:
    """Build valid rows; a change of None removes one."""
    valid_groups: dict[str, tuple[FieldRow, ...] | None] = {
        "id": declare_read_only_fields("id", reason="the service's own"),
        "name": declare_renamed_field("name", "holder"),
        "province": declare_renamed_field("province", "region", answer_name="regionCode"),
        "street": declare_nested_table("street", STREET_TABLE),
        "status": declare_field_set_in_code("status", "state", reason="other words"),
        "colour": declare_field_set_in_code("colour", reason="nothing is painted"),
    }
    return tuple(row_group for row_group in {**valid_groups, **changes}.values() if row_group)


def build_table(**changes: tuple[FieldRow, ...] | None) -> FieldTable:
    return FieldTable(
        (LegacyAnswerShape, LegacyBodyShape), (CurrentShape,), *build_row_groups(**changes)
    )


# Invalid tables


@pytest.mark.parametrize("name", ["id", "name", "province", "street", "status", "colour"])
def test_field_without_row_is_an_error(name: str) -> None:
    with pytest.raises(FieldTableError, match=f"^{name}: no row$"):
        build_table(**{name: None})


def test_row_for_unknown_legacy_field_is_an_error() -> None:
    with pytest.raises(FieldTableError, match="color: not in the legacy shape"):
        build_table(colour=declare_field_set_in_code("color", reason="mistyped"))


@pytest.mark.parametrize(
    ("changed_groups", "target"),
    [
        ({"name": declare_renamed_field("name", "holdr")}, "holdr"),
        ({"name": declare_renamed_field("name", "holder", answer_name="holdr")}, "holdr"),
        (
            {
                "id": declare_read_only_fields("id", reason=""),
                "name": declare_same_name_fields("name"),
            },
            "name",
        ),
        ({"status": declare_field_set_in_code("status", "stat", reason="")}, "stat"),
    ],
    ids=["sent to", "shown as", "same name", "by hand"],
)
def test_unknown_current_field_is_an_error(
    changed_groups: dict[str, tuple[FieldRow, ...]], target: str
) -> None:
    with pytest.raises(FieldTableError, match=f"^{target}: not in the current shape$"):
        build_table(**changed_groups)


def test_two_rows_for_one_field_are_an_error() -> None:
    with pytest.raises(FieldTableError, match=r"^name: more than one row$"):
        build_table(again=declare_renamed_field("name", "holder"))


def test_all_table_errors_are_reported_at_once() -> None:
    with pytest.raises(FieldTableError) as error:
        build_table(id=None, again=declare_renamed_field("name", "holdr"))
    assert str(error.value) == (
        "id: no row; name: more than one row; holdr: not in the current shape"
    )


@pytest.mark.parametrize("value", [None, "no object"])
def test_non_object_in_place_of_object_is_sent_unchanged(value: object) -> None:
    assert build_table().translate_to_current({"street": value}) == {"street": value}


def test_first_row_names_a_shared_current_field() -> None:
    assert (
        build_table(name=declare_renamed_field("name", "region")).map_field_names_to_client()[
            "region"
        ]
        == "name"
    )


TABLES = {name: value for name, value in vars(objects).items() if isinstance(value, FieldTable)}


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_unsent_row_states_a_reason(field_table: FieldTable) -> None:
    assert [
        table_row.legacy_name
        for table_row in field_table.rows
        if not table_row.is_sent and not table_row.reason
    ] == []
