"""Field tables: validation against their shapes, and translation by them."""

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


def test_request_only_field_needs_a_row() -> None:
    with pytest.raises(FieldTableError, match=r"^colour: no row$"):
        FieldTable(
            (LegacyAnswerShape, LegacyBodyShape), (CurrentShape,), *build_row_groups(colour=None)
        )


def test_row_for_unknown_legacy_field_is_an_error() -> None:
    with pytest.raises(FieldTableError, match="color: not in the legacy shape"):
        build_table(colour=declare_field_set_in_code("color", reason="mistyped"))


def test_mistyped_row_is_reported_with_field_left_without_row() -> None:
    with pytest.raises(FieldTableError) as error:
        build_table(name=declare_renamed_field("nmae", "holder"))
    assert str(error.value) == "name: no row; nmae: not in the legacy shape"


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


def test_field_both_translated_and_dropped_is_an_error() -> None:
    with pytest.raises(FieldTableError, match=r"^name: more than one row$"):
        build_table(again=declare_field_set_in_code("name", reason="not needed after all"))


def test_all_table_errors_are_reported_at_once() -> None:
    with pytest.raises(FieldTableError) as error:
        build_table(id=None, again=declare_renamed_field("name", "holdr"))
    assert str(error.value) == (
        "id: no row; name: more than one row; holdr: not in the current shape"
    )


def test_two_legacy_fields_may_map_to_one_current_field() -> None:
    assert build_table(name=declare_renamed_field("name", "region")).translate_to_current(
        {"name": "Zoë"}
    ) == {"region": "Zoë"}


# Requests


def test_fields_are_renamed_and_keep_client_order() -> None:
    current_fields = build_table().translate_to_current({"province": "QC", "name": "Zoë"})
    assert list(current_fields.items()) == [("region", "QC"), ("holder", "Zoë")]


@pytest.mark.parametrize("value", [None, "", [], {}, 10**30, "ünï", ["a"]], ids=repr)
def test_values_are_sent_unchanged(value: object) -> None:
    assert build_table().translate_to_current({"name": value}) == {"holder": value}


@pytest.mark.parametrize("name", ["id", "status", "colour"])
def test_read_only_manual_and_dropped_fields_are_not_sent(name: str) -> None:
    assert build_table().translate_to_current({name: "x"}) == {}


def test_nested_object_uses_its_own_table() -> None:
    current_fields = build_table().translate_to_current({"street": {"town": "Köln", "line": "1"}})
    assert current_fields == {"street": {"city": "Köln", "line": "1"}}


@pytest.mark.parametrize("value", [None, "no object"])
def test_non_object_in_place_of_object_is_sent_unchanged(value: object) -> None:
    assert build_table().translate_to_current({"street": value}) == {"street": value}


def test_missing_field_is_not_added() -> None:
    assert build_table().translate_to_current({}) == {}


# Answers


def test_answer_has_exactly_the_legacy_fields_in_order() -> None:
    legacy_fields = build_table().translate_to_legacy(
        {"state": "x", "holder": "Zoë", "tags": ["current only"]}
    )
    assert list(legacy_fields) == ["id", "name", "province", "street", "status"]


def test_answer_is_read_by_its_own_field_names() -> None:
    current_fields = {"id": "R-1", "holder": "Zoë", "region": "asked", "regionCode": "given"}
    legacy_fields = build_table().translate_to_legacy(
        {**current_fields, "street": {"city": "Köln", "country": "DE"}}
    )
    assert legacy_fields["id"] == "R-1"
    assert legacy_fields["name"] == "Zoë"
    assert legacy_fields["province"] == "given"
    assert legacy_fields["street"] == {"line": None, "town": "Köln"}


def test_missing_field_of_answer_is_null() -> None:
    assert set(build_table().translate_to_legacy({"state": "x"}).values()) == {None}


# Field names in errors


def test_errors_use_full_client_field_names() -> None:
    assert build_table().map_field_names_to_client("payout.bank.") == {
        "id": "payout.bank.id",
        "holder": "payout.bank.name",
        "region": "payout.bank.province",
        "street": "payout.bank.street",
        "street.line": "payout.bank.street.line",
        "street.city": "payout.bank.street.town",
        "state": "payout.bank.status",
    }


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


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_table_has_rows(field_table: FieldTable) -> None:
    assert field_table.rows
