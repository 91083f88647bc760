"""Field tables: validation against their shapes, and translation by them."""

from __future__ import annotations

import pytest
from typing_extensions import TypedDict

from mappings import objects
from mappings.fields import (
    Fields,
    Mistabled,
    Row,
    by_hand,
    dropped,
    nested,
    read_only,
    renamed,
    same,
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


STREET = Fields((LegacyStreet,), (CurrentStreet,), same("line"), renamed("town", "city"))


def rows(**changes: tuple[Row, ...] | None) -> tuple[tuple[Row, ...], ...]:
    """Build valid rows; a change of None removes one."""
    fitting: dict[str, tuple[Row, ...] | None] = {
        "id": read_only("id", why="the service's own"),
        "name": renamed("name", "holder"),
        "province": renamed("province", "region", shown="regionCode"),
        "street": nested("street", STREET),
        "status": by_hand("status", "state", why="other words"),
        "colour": dropped("colour", why="nothing is painted"),
    }
    return tuple(some for some in {**fitting, **changes}.values() if some)


def table(**changes: tuple[Row, ...] | None) -> Fields:
    return Fields((Shown, Sent), (Current,), *rows(**changes))


# Invalid tables


@pytest.mark.parametrize("name", ["id", "name", "province", "street", "status", "colour"])
def test_a_field_without_a_row_is_mistabled(name: str) -> None:
    with pytest.raises(Mistabled, match=f"^{name}: no row$"):
        table(**{name: None})


def test_a_field_that_only_requests_have_needs_its_row_too() -> None:
    with pytest.raises(Mistabled, match=r"^colour: no row$"):
        Fields((Shown, Sent), (Current,), *rows(colour=None))


def test_a_row_for_a_field_that_legacy_does_not_have_is_mistabled() -> None:
    with pytest.raises(Mistabled, match="color: not in the legacy shape"):
        table(colour=dropped("color", why="mistyped"))


def test_a_mistyped_field_is_told_with_the_one_that_it_leaves_without_a_row() -> None:
    with pytest.raises(Mistabled) as raised:
        table(name=renamed("nmae", "holder"))
    assert str(raised.value) == "name: no row; nmae: not in the legacy shape"


@pytest.mark.parametrize(
    ("changed", "target"),
    [
        ({"name": renamed("name", "holdr")}, "holdr"),
        ({"name": renamed("name", "holder", shown="holdr")}, "holdr"),
        ({"id": read_only("id", why=""), "name": same("name")}, "name"),
        ({"status": by_hand("status", "stat", why="")}, "stat"),
    ],
    ids=["sent to", "shown as", "same name", "by hand"],
)
def test_a_target_that_the_current_interface_does_not_have_is_mistabled(
    changed: dict[str, tuple[Row, ...]], target: str
) -> None:
    with pytest.raises(Mistabled, match=f"^{target}: not in the current shape$"):
        table(**changed)


def test_two_rows_for_one_field_are_mistabled() -> None:
    with pytest.raises(Mistabled, match=r"^name: more than one row$"):
        table(again=renamed("name", "holder"))


def test_a_field_that_is_translated_and_dropped_as_well_is_mistabled() -> None:
    with pytest.raises(Mistabled, match=r"^name: more than one row$"):
        table(again=dropped("name", why="not needed after all"))


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(Mistabled) as raised:
        table(id=None, again=renamed("name", "holdr"))
    assert str(raised.value) == (
        "id: no row; name: more than one row; holdr: not in the current shape"
    )


def test_two_legacy_fields_may_go_to_one_current_field() -> None:
    assert table(name=renamed("name", "region")).to_current({"name": "Zoë"}) == {"region": "Zoë"}


# Requests


def test_fields_travel_under_the_current_names_and_in_the_client_s_order() -> None:
    sent = table().to_current({"province": "QC", "name": "Zoë"})
    assert list(sent.items()) == [("region", "QC"), ("holder", "Zoë")]


@pytest.mark.parametrize("value", [None, "", [], {}, 10**30, "ünï", ["a"]], ids=repr)
def test_values_are_sent_as_they_are(value: object) -> None:
    assert table().to_current({"name": value}) == {"holder": value}


@pytest.mark.parametrize("name", ["id", "status", "colour"])
def test_what_is_read_only_set_by_hand_or_dropped_is_not_sent(name: str) -> None:
    assert table().to_current({name: "x"}) == {}


def test_a_nested_object_is_translated_by_its_own_table() -> None:
    sent = table().to_current({"street": {"town": "Köln", "line": "1"}})
    assert sent == {"street": {"city": "Köln", "line": "1"}}


@pytest.mark.parametrize("value", [None, "no object"])
def test_what_is_no_object_in_the_place_of_one_is_sent_as_it_is(value: object) -> None:
    assert table().to_current({"street": value}) == {"street": value}


def test_what_was_not_sent_is_not_made_up() -> None:
    assert table().to_current({}) == {}


# Answers


def test_an_answer_has_exactly_the_legacy_fields_in_their_order() -> None:
    shown = table().to_legacy({"state": "x", "holder": "Zoë", "tags": ["current only"]})
    assert list(shown) == ["id", "name", "province", "street", "status"]


def test_an_answer_is_read_from_the_names_that_answers_have() -> None:
    given = {"id": "R-1", "holder": "Zoë", "region": "asked", "regionCode": "given"}
    shown = table().to_legacy({**given, "street": {"city": "Köln", "country": "DE"}})
    assert shown["id"] == "R-1"
    assert shown["name"] == "Zoë"
    assert shown["province"] == "given"
    assert shown["street"] == {"line": None, "town": "Köln"}


def test_what_did_not_come_is_null_and_what_is_set_by_hand_is_left_for_it() -> None:
    assert set(table().to_legacy({"state": "x"}).values()) == {None}


# Field names in errors


def test_errors_are_told_by_the_client_s_own_full_names() -> None:
    assert table().sent_as("payout.bank.") == {
        "id": "payout.bank.id",
        "holder": "payout.bank.name",
        "region": "payout.bank.province",
        "street": "payout.bank.street",
        "street.line": "payout.bank.street.line",
        "street.city": "payout.bank.street.town",
        "state": "payout.bank.status",
    }


def test_of_two_fields_that_go_to_one_the_first_row_names_it() -> None:
    assert table(name=renamed("name", "region")).sent_as()["region"] == "name"


TABLES = {name: value for name, value in vars(objects).items() if isinstance(value, Fields)}


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_row_of_the_house_that_sends_nothing_says_why(field_table: Fields) -> None:
    assert [row.legacy for row in field_table.rows if not row.sends and not row.why] == []


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_table_of_the_house_has_rows(field_table: Fields) -> None:
    assert field_table.rows
