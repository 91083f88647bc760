"""Field tables are checked against their shapes; transcripts show what they translate."""

from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import TypedDict

from mappings import objects
from mappings.fields import FieldTable, FieldTableError


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
    (LegacyStreet,), (CurrentStreet,), same_names=("line",), renamed={"town": ("city", "city")}
)

RENAMED = {"name": ("holder", "holder"), "province": ("region", "regionCode")}

VALID_FIELDS: dict[str, dict[str, Any]] = {
    "read_only": {"id": "the service's own"},
    "renamed": RENAMED,
    "nested": {"street": STREET_TABLE},
    "set_in_code": {"status": ("state", "other words"), "colour": "nothing is painted"},
}


def build_table(*, without: str = "", **changes: dict[str, Any] | tuple[str, ...]) -> FieldTable:
    fields = {
        kind: {name: value for name, value in named.items() if name != without}
        for kind, named in VALID_FIELDS.items()
    }
    return FieldTable(
        (LegacyAnswerShape, LegacyBodyShape), (CurrentShape,), **{**fields, **changes}
    )


# Invalid tables


@pytest.mark.parametrize("name", ["id", "name", "province", "street", "status", "colour"])
def test_field_without_row_is_an_error(name: str) -> None:
    with pytest.raises(FieldTableError, match=f"^{name}: no row$"):
        build_table(without=name)


def test_row_for_unknown_legacy_field_is_an_error() -> None:
    with pytest.raises(FieldTableError, match="color: not in the legacy shape"):
        build_table(set_in_code={"status": "other words", "color": "mistyped"})


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({"renamed": {**RENAMED, "name": ("holdr", "holder")}}, "holdr"),
        ({"renamed": {**RENAMED, "name": ("holder", "holdr")}}, "holdr"),
        ({"renamed": {"province": ("region", "region")}, "same_names": ("name",)}, "name"),
        ({"set_in_code": {"colour": "", "status": ("stat", "other words")}}, "stat"),
    ],
    ids=["sent to", "shown as", "same name", "by hand"],
)
def test_unknown_current_field_is_an_error(changes: dict[str, Any], target: str) -> None:
    with pytest.raises(FieldTableError, match=f"^{target}: not in the current shape$"):
        build_table(**changes)


def test_two_rows_for_one_field_are_an_error() -> None:
    with pytest.raises(FieldTableError, match=r"^name: more than one row$"):
        build_table(set_in_code={**VALID_FIELDS["set_in_code"], "name": "again"})


def test_all_table_errors_are_reported_at_once() -> None:
    with pytest.raises(FieldTableError) as error:
        build_table(
            read_only={},
            renamed={**RENAMED, "name": ("holdr", "holder")},
            set_in_code={**VALID_FIELDS["set_in_code"], "name": "again"},
        )
    assert str(error.value) == (
        "id: no row; name: more than one row; holdr: not in the current shape"
    )


@pytest.mark.parametrize("value", [None, "no object"])
def test_non_object_in_place_of_object_is_sent_unchanged(value: object) -> None:
    assert build_table().translate_to_current({"street": value}) == {"street": value}


def test_first_field_names_a_shared_current_field() -> None:
    table = build_table(set_in_code={"colour": "", "status": ("region", "")})
    assert table.map_field_names_to_client()["region"] == "province"


TABLES = {name: value for name, value in vars(objects).items() if isinstance(value, FieldTable)}


@pytest.mark.parametrize("field_table", TABLES.values(), ids=TABLES.keys())
def test_every_row_without_a_place_states_a_reason(field_table: FieldTable) -> None:
    assert all(row.reason for row in field_table.rows if row.answer_name is None)
