"""Field tables: validation against their shapes, and translation by them."""

from __future__ import annotations

import pytest
from typing_extensions import TypedDict

from mappings import objects
from mappings.fields import (
    FieldRow,
    FieldTable,
    FieldTableError,
    drop_fields,
    keep_names,
    mark_read_only,
    nest_table,
    rename_field,
    set_in_code,
)


class LegacyStreet(TypedDict, total=False):
    line: str
    town: str


class CurrentStreet(TypedDict, total=False):
    line: str
    city: str


class Shown(TypedDict, total=False):
    id: str
    name: str
    province: str
    street: LegacyStreet
    status: str


class Sent(TypedDict, total=False):
    name: str
    province: str
    street: LegacyStreet
    colour: str


class Current(TypedDict, total=False):
    id: str
    holder: str
    region: str
    regionCode: str
    street: CurrentStreet
    state: str


STREET = FieldTable((LegacyStreet,), (CurrentStreet,), keep_names("line"), rename_field("town", "city"))


def rows(**changes: tuple[FieldRow, ...] | None) -> tuple[tuple[FieldRow, ...], ...]:
    """Build valid rows; a change of None removes one."""
    fitting: dict[str, tuple[FieldRow, ...] | None] = {
        "id": mark_read_only("id", reason="the service's own"),
        "name": rename_field("name", "holder"),
        "province": rename_field("province", "region", answer_name="regionCode"),
        "street": nest_table("street", STREET),
        "status": set_in_code("status", "state", reason="other words"),
        "colour": drop_fields("colour", reason="nothing is painted"),
    }
    return tuple(some for some in {**fitting, **changes}.values() if some)


def table(**changes: tuple[FieldRow, ...] | None) -> FieldTable:
    return FieldTable((Shown, Sent), (Current,), *rows(**changes))


# Invalid tables


@pytest.mark.parametrize("name", ["id", "name", "province", "street", "status", "colour"])
def test_a_field_without_a_row_is_mistabled(name: str) -> None:
    with pytest.raises(FieldTableError, match=f"^{name}: no row$"):
        table(**{name: None})


def test_a_field_that_only_requests_have_needs_its_row_too() -> None:
    with pytest.raises(FieldTableError, match=r"^colour: no row$"):
        FieldTable((Shown, Sent), (Current,), *rows(colour=None))


def test_a_row_for_a_field_that_legacy_does_not_have_is_mistabled() -> None:
    with pytest.raises(FieldTableError, match="color: not in the legacy shape"):
        table(colour=drop_fields("color", reason="mistyped"))


def test_a_mistyped_field_is_told_with_the_one_that_it_leaves_without_a_row() -> None:
    with pytest.raises(FieldTableError) as raised:
        table(name=rename_field("nmae", "holder"))
    assert str(raised.value) == "name: no row; nmae: not in the legacy shape"


@pytest.mark.parametrize(
    ("changed", "target"),
    [
        ({"name": rename_field("name", "holdr")}, "holdr"),
        ({"name": rename_field("name", "holder", answer_name="holdr")}, "holdr"),
        ({"id": mark_read_only("id", reason=""), "name": keep_names("name")}, "name"),
        ({"status": set_in_code("status", "stat", reason="")}, "stat"),
    ],
    ids=["sent to", "shown as", "same name", "by hand"],
)
def test_a_target_that_the_current_interface_does_not_have_is_mistabled(
    changed: dict[str, tuple[FieldRow, ...]], target: str
) -> None:
    with pytest.raises(FieldTableError, match=f"^{target}: not in the current shape$"):
        table(**changed)


def test_two_rows_for_one_field_are_mistabled() -> None:
    with pytest.raises(FieldTableError, match=r"^name: more than one row$"):
        table(again=rename_field("name", "holder"))


def test_a_field_that_is_translated_and_dropped_as_well_is_mistabled() -> None:
    with pytest.raises(FieldTableError, match=r"^name: more than one row$"):
        table(again=drop_fields("name", reason="not needed after all"))


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(FieldTableError) as raised:
        table(id=None, again=rename_field("name", "holdr"))
    assert str(raised.value) == (
        "id: no row; name: more than one row; holdr: not in the current shape"
    )


def test_two_legacy_fields_may_go_to_one_current_field() -> None:
    assert table(name=rename_field("name", "region")).translate_to_current({"name": "Zoë"}) == {"region": "Zoë"}


# Requests


def test_fields_travel_under_the_current_names_and_in_the_client_s_order() -> None:
    sent = table().translate_to_current({"province": "QC", "name": "Zoë"})
    assert list(sent.items()) == [("region", "QC"), ("holder", "Zoë")]


@pytest.mark.parametrize("value", [None, "", [], {}, 10**30, "ünï", ["a"]], ids=repr)
def test_values_are_sent_as_they_are(value: object) -> None:
    assert table().translate_to_current({"name": value}) == {"holder": value}


@pytest.mark.parametrize("name", ["id", "status", "colour"])
def test_what_is_read_only_set_by_hand_or_dropped_is_not_sent(name: str) -> None:
    assert table().translate_to_current({name: "x"}) == {}


def test_a_nested_object_is_translated_by_its_own_table() -> None:
    sent = table().translate_to_current({"street": {"town": "Köln", "line": "1"}})
    assert sent == {"street": {"city": "Köln", "line": "1"}}


@pytest.mark.parametrize("value", [None, "no object"])
def test_what_is_no_object_in_the_place_of_one_is_sent_as_it_is(value: object) -> None:
    assert table().translate_to_current({"street": value}) == {"street": value}


def test_what_was_not_sent_is_not_made_up() -> None:
    assert table().translate_to_current({}) == {}


# Answers


def test_an_answer_has_exactly_the_legacy_fields_in_their_order() -> None:
    shown = table().translate_to_legacy({"state": "x", "holder": "Zoë", "tags": ["current only"]})
    assert list(shown) == ["id", "name", "province", "street", "status"]


def test_an_answer_is_read_from_the_names_that_answers_have() -> None:
    given = {"id": "R-1", "holder": "Zoë", "region": "asked", "regionCode": "given"}
    shown = table().translate_to_legacy({**given, "street": {"city": "Köln", "country": "DE"}})
    assert shown["id"] == "R-1"
    assert shown["name"] == "Zoë"
    assert shown["province"] == "given"
    assert shown["street"] == {"line": None, "town": "Köln"}


def test_what_did_not_come_is_null_and_what_is_set_by_hand_is_left_for_it() -> None:
    assert set(table().translate_to_legacy({"state": "x"}).values()) == {None}


# Field names in errors


def test_errors_are_told_by_the_client_s_own_full_names() -> None:
    assert table().build_field_map("payout.bank.") == {
        "id": "payout.bank.id",
        "holder": "payout.bank.name",
        "region": "payout.bank.province",
        "street": "payout.bank.street",
        "street.line": "payout.bank.street.line",
        "street.city": "payout.bank.street.town",
        "state": "payout.bank.status",
    }


def test_of_two_fields_that_go_to_one_the_first_row_names_it() -> None:
    assert table(name=rename_field("name", "region")).build_field_map()["region"] == "name"


TABLES = {name: value for name, value in vars(objects).items() if isinstance(value, FieldTable)}


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_row_of_the_house_that_sends_nothing_says_why(field_table: FieldTable) -> None:
    assert [row.legacy_name for row in field_table.rows if not row.is_sent and not row.reason] == []


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_table_of_the_house_has_rows(field_table: FieldTable) -> None:
    assert field_table.rows
