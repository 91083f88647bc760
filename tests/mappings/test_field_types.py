"""Field types of client bodies: accepted values, normal forms and errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from mappings import OPERATIONS, field_types, legacy, request_bodies
from mappings.failures import Invalid, Problem
from mappings.field_types import (
    Country,
    Day,
    Email,
    Flag,
    Integer,
    RecipientType,
    ShownCurrency,
    Ssn,
    Text,
)


class Inner(TypedDict, total=False):
    text: Text
    email: Email
    street2: Text


class Shape(TypedDict, total=False):
    text: Text
    perhaps: Text | None
    country: Country
    currency: ShownCurrency
    shown: ShownCurrency
    email: Email
    day: Day
    flag: Flag
    whole: Integer
    ssn: Ssn
    type: RecipientType
    inner: Inner | None
    inners: list[Inner]


def parse_valid(**body: Any) -> Any:
    parsed, problems = request_bodies.parse_body(Shape, body)
    assert problems == ()
    return parsed


def list_problems(body_type: Any, body: Any) -> list[Problem]:
    try:
        _parsed, problems = request_bodies.parse_body(body_type, body)
    except Invalid as invalid:
        return list(invalid.problems)
    return list(problems)


# Each field type


@pytest.mark.parametrize(
    ("kind", "value", "expected_value"),
    [
        ("text", "Zoë 李 ", "Zoë 李 "),
        ("text", 12345678901234567890, "12345678901234567890"),
        ("text", 0, "0"),
        ("country", "US", "US"),
        ("country", "us", "US"),
        ("country", "USA", "US"),
        ("country", "deu", "DE"),
        ("country", " GB ", "GB"),
        ("country", "XKX", "XK"),
        ("currency", "EUR", "EUR"),
        ("currency", "eur", "EUR"),
        ("currency", {"code": "usd", "name": "US Dollar"}, "USD"),
        ("currency", {"currency": {"code": "USD", "name": "US Dollar"}}, "USD"),
        ("shown", {"code": "USD", "name": "x", "currency": {"code": "USD", "name": "x"}}, "USD"),
        ("shown", {"code": None, "name": None}, None),
        ("shown", {"code": None, "name": None, "currency": {"code": None, "name": None}}, None),
        ("shown", {}, None),
        ("shown", None, None),
        ("email", "zoë.peña+1@exämple.com", "zoë.peña+1@exämple.com"),
        ("day", "1990-02-28", "1990-02-28"),
        ("day", "1990-02-28T00:00:00.000Z", "1990-02-28"),
        ("flag", True, True),
        ("flag", False, False),
        ("flag", "True", True),
        ("flag", "False", False),
        ("flag", "false", False),
        ("whole", 1000, 1000),
        ("whole", "1000", 1000),
        ("whole", 0, 0),
        ("ssn", "123456789", "123456789"),
        ("ssn", 123456789, "123456789"),
        ("ssn", "****89", "****89"),
        ("ssn", "XXX-XX-6789", "XXX-XX-6789"),
        ("type", "business", "business"),
        ("perhaps", None, None),
        ("inner", None, None),
        ("inner", {}, {}),
    ],
)
def test_field_type_normalizes_client_values(kind: str, value: Any, expected_value: Any) -> None:
    parsed_value = parse_valid(**{kind: value})[kind]
    assert parsed_value == expected_value
    assert type(parsed_value) is type(expected_value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", True),
        ("text", ["a"]),
        ("text", {"a": "b"}),
        ("text", None),
        ("perhaps", False),
        ("country", "Germany"),
        ("country", "ZZ"),
        ("country", "U"),
        ("country", "ÜS"),
        ("country", "UK"),
        ("country", "USAA"),
        ("country", "\uff35\uff33"),
        ("country", 840),
        ("country", None),
        ("currency", "EURO"),
        ("currency", "€"),
        ("currency", "E€R"),
        ("currency", 978),
        ("currency", {"code": 978}),
        ("currency", []),
        ("shown", "EURO"),
        ("shown", {"code": "EURO"}),
        ("shown", ["EUR"]),
        ("email", "zoe"),
        ("email", "zoe@"),
        ("email", "@example.com"),
        ("email", "z o e@example.com"),
        ("email", "zoe@example.com\n"),
        ("email", 5),
        ("day", "1990-02-30"),
        ("day", "28.02.1990"),
        ("day", "1990-2-28"),
        ("day", "1990-02-28 morning"),
        ("day", "١٩٩٠-٠٢-٢٨"),
        ("day", 19900228),
        ("flag", "yes"),
        ("flag", 1),
        ("flag", None),
        ("whole", "1.5"),
        ("whole", "1_000"),
        ("whole", "\u0661"),
        ("whole", True),
        ("whole", [1]),
        ("type", "robot"),
        ("type", ["individual"]),
        ("inner", "text"),
        ("inner", []),
        ("inners", {}),
        ("inners", "text"),
    ],
)
def test_field_type_refuses_unreadable_value_by_field_name(kind: str, value: Any) -> None:
    [problem] = list_problems(Shape, {kind: value})
    assert (problem.code, problem.field) == ("invalid_field", kind)
    assert problem.message.startswith(f"{kind} ")


@pytest.mark.parametrize("kind", ["email", "type"])
def test_required_null_is_an_empty_field(kind: str) -> None:
    assert list_problems(Shape, {kind: None}) == [
        Problem("empty_field", f"{kind} is required.", kind)
    ]


def test_missing_required_field_is_an_empty_field() -> None:
    for body in ({}, {"ids": ""}):
        assert list_problems(legacy.RecipientIdsBody, body) == [
            Problem("empty_field", "ids is required.", "ids")
        ]


def test_ids_with_an_invalid_one_are_refused_however_many() -> None:
    for count in (1, 500):
        with pytest.raises(Invalid) as error:
            request_bodies.parse_body(legacy.RecipientIdsBody, {"ids": ["R-1"] * count + [1.5]})
        assert [problem.field for problem in error.value.problems] == [f"ids[{count}]"]


def test_empty_text_omits_the_field_at_any_depth() -> None:
    parsed_body = parse_valid(
        text="", email="", shown="", inner={"text": "", "email": "a@b"}, inners=[{"text": ""}]
    )
    assert parsed_body == {"inner": {"email": "a@b"}, "inners": [{}]}


def test_empty_street2_is_kept() -> None:
    assert parse_valid(inner={"street2": ""}) == {"inner": {"street2": ""}}


def test_invalid_fields_are_removed_and_valid_ones_kept() -> None:
    body = {"text": "a", "day": "soon", "inner": {"text": "b", "email": "nobody"}}
    parsed_body, problems = request_bodies.parse_body(
        Shape, {**body, "inners": [{"text": "c"}, {"text": []}]}
    )
    assert parsed_body == {"text": "a", "inner": {"text": "b"}, "inners": [{"text": "c"}, {}]}
    assert [problem.field for problem in problems] == ["day", "inner.email", "inners[1].text"]


# Fields in errors


def test_all_problems_are_listed_by_full_client_names() -> None:
    body = {
        "country": "Germany",
        "inner": {"email": "nobody"},
        "inners": [{"text": "a"}, {"text": ["b"], "email": None}],
    }
    assert [(problem.code, problem.field) for problem in list_problems(Shape, body)] == [
        ("invalid_field", "country"),
        ("invalid_field", "inner.email"),
        ("invalid_field", "inners[1].text"),
        ("empty_field", "inners[1].email"),
    ]


def test_payout_problems_use_paths_of_the_client() -> None:
    bank = {"country": "Germany", "currency": "EURO", "routing": [1]}
    payout = {
        "primary": {"method": {}, "currency": 5},
        "accounts": {"bank": bank, "wallet": {"address": "nobody"}},
        "holdup": {"active": "maybe", "limit": "much"},
    }
    body = {"payout": payout, "address": {"country": "Wonderland"}}
    assert {problem.field for problem in list_problems(legacy.RecipientBody, body)} == {
        "address.country",
        "payout.primary.method",
        "payout.primary.currency",
        "payout.accounts.bank.country",
        "payout.accounts.bank.currency",
        "payout.accounts.bank.routing",
        "payout.accounts.wallet.address",
        "payout.holdup.active",
        "payout.holdup.limit",
    }


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda children: st.one_of(st.lists(children), st.dictionaries(st.text(), children)),
    max_leaves=6,
)
OPERATIONS_WITH_BODY = [operation for operation in OPERATIONS if operation.body_shape is not None]


@pytest.mark.parametrize("operation", OPERATIONS_WITH_BODY, ids=lambda operation: operation.name)
@given(data=st.data())
def test_any_body_is_accepted_or_refused_with_legacy_codes(
    operation: Any, data: st.DataObject
) -> None:
    names = st.sampled_from(sorted(operation.body_shape.__annotations__))
    body = data.draw(st.one_of(VALUES, st.dictionaries(names, VALUES)))
    listed_problems = list_problems(operation.body_shape, body)
    assert {problem.code for problem in listed_problems} <= {"invalid_field", "empty_field"}
    assert len(listed_problems) == len(set(listed_problems))


# Masks


@pytest.mark.parametrize(
    ("value", "mask"),
    [
        *(("****47", True), ("*", True), ("123", False), ("", False), (None, False), (5, False)),
        *(("XXX-XX-6789", True), ("xxxxxx89", True), ("\u2022\u2022\u2022\u2022\u202289", True)),
        *(("...89", True), ("#####89", True), ("XX1234", False), ("...", False), ("Xxx", False)),
    ],
)
def test_mask_is_recognized_by_its_asterisk(value: Any, mask: bool) -> None:
    assert field_types.is_masked_value(value) is mask
