"""Field types of client bodies: accepted values, normal forms and errors."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from mappings import OPERATIONS, field_types, legacy
from mappings.failures import Invalid, Problem
from mappings.field_types import (
    Country,
    Currency,
    Day,
    Email,
    Flag,
    Integer,
    ListValue,
    ObjectValue,
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
    currency: Currency
    shown: ShownCurrency
    email: Email
    day: Day
    flag: Flag
    whole: Integer
    ssn: Ssn
    type: RecipientType
    inner: Annotated[Inner, ObjectValue] | None
    inners: Annotated[list[Annotated[Inner, ObjectValue]], ListValue]


def read(**body: Any) -> Any:
    taken, wrong = field_types.parse_body(Shape, body)
    assert wrong == ()
    return taken


def problems(shape: Any, body: Any) -> list[Problem]:
    try:
        _taken, wrong = field_types.parse_body(shape, body)
    except Invalid as invalid:
        return list(invalid.problems)
    return list(wrong)


# Each field type


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
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
        ("type", "business", "business"),
        ("perhaps", None, None),
        ("inner", None, None),
        ("inner", {}, {}),
    ],
)
def test_a_kind_takes_what_clients_send_and_brings_it_into_one_form(
    kind: str, value: Any, taken: Any
) -> None:
    got = read(**{kind: value})[kind]
    assert got == taken
    assert type(got) is type(taken)


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
        ("country", 840),
        ("country", None),
        ("currency", "EURO"),
        ("currency", "€"),
        ("currency", "E€R"),
        ("currency", 978),
        ("currency", {"code": 978}),
        ("currency", []),
        ("currency", None),
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
        ("ssn", "123-45-6789"),
        ("ssn", "12345678"),
        ("ssn", "123456789 "),
        ("type", "robot"),
        ("type", ["individual"]),
        ("inner", "text"),
        ("inner", []),
        ("inners", {}),
        ("inners", "text"),
    ],
)
def test_a_kind_refuses_what_it_cannot_read_under_the_field_s_name(kind: str, value: Any) -> None:
    [problem] = problems(Shape, {kind: value})
    assert (problem.code, problem.field) == ("invalid_field", kind)
    assert problem.message.startswith(f"{kind} ")


@pytest.mark.parametrize("kind", ["email", "type"])
def test_a_required_value_that_is_null_is_an_empty_field(kind: str) -> None:
    assert problems(Shape, {kind: None}) == [Problem("empty_field", f"{kind} is required.", kind)]


def test_a_required_field_that_is_missing_is_an_empty_field() -> None:
    for body in ({}, {"ids": ""}):
        assert problems(legacy.RecipientIdsBody, body) == [
            Problem("empty_field", "ids is required.", "ids")
        ]


def test_empty_text_leaves_a_field_out_wherever_it_stands() -> None:
    got = read(
        text="", email="", shown="", inner={"text": "", "email": "a@b"}, inners=[{"text": ""}]
    )
    assert got == {"inner": {"email": "a@b"}, "inners": [{}]}


def test_an_empty_street2_says_that_there_is_none() -> None:
    assert read(inner={"street2": ""}) == {"inner": {"street2": ""}}


def test_unknown_fields_are_ignored() -> None:
    assert read(text="a", colour="blue", inner={"shape": {"round": True}}) == {
        "text": "a",
        "inner": {},
    }


@pytest.mark.parametrize("body", [None, [], "text", 5, True], ids=repr)
def test_a_body_that_is_no_object_is_refused_without_a_field(body: Any) -> None:
    assert problems(Shape, body) == [Problem("invalid_field", "The body must be a JSON object.")]


def test_what_is_wrong_is_taken_out_and_what_is_right_is_kept() -> None:
    sent = {"text": "a", "day": "soon", "inner": {"text": "b", "email": "nobody"}}
    taken, wrong = field_types.parse_body(Shape, {**sent, "inners": [{"text": "c"}, {"text": []}]})
    assert taken == {"text": "a", "inner": {"text": "b"}, "inners": [{"text": "c"}, {}]}
    assert [one.field for one in wrong] == ["day", "inner.email", "inners[1].text"]


# Fields in errors


def test_every_problem_is_told_at_once_by_the_client_s_full_names() -> None:
    sent = {
        "country": "Germany",
        "inner": {"email": "nobody"},
        "inners": [{"text": "a"}, {"text": ["b"], "email": None}],
    }
    assert [(one.code, one.field) for one in problems(Shape, sent)] == [
        ("invalid_field", "country"),
        ("invalid_field", "inner.email"),
        ("invalid_field", "inners[1].text"),
        ("empty_field", "inners[1].email"),
    ]


def test_a_payout_s_problems_are_told_where_the_client_wrote_them() -> None:
    bank = {"country": "Germany", "currency": "EURO", "routing": [1]}
    payout = {
        "primary": {"method": {}, "currency": 5},
        "accounts": {"bank": bank, "wallet": {"address": "nobody"}},
        "holdup": {"active": "maybe", "limit": "much"},
    }
    body = {"payout": payout, "address": {"country": "Wonderland"}}
    assert {one.field for one in problems(legacy.RecipientBody, body)} == {
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


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("ids",), "ids"),
        (("payout", "accounts", "bank", "iban"), "payout.accounts.bank.iban"),
        (("payments", 3, "sourceAmount"), "payments[3].sourceAmount"),
        (("rows", 0, 1), "rows[0][1]"),
        ((), ""),
    ],
)
def test_a_place_is_spelled_as_the_document_spells_fields(
    place: tuple[str | int, ...], text: str
) -> None:
    assert field_types.format_field_path(place) == text


# Errors do not quote the input


SECRET = "s3cr3t-4711"


@pytest.mark.parametrize("kind", Shape.__annotations__)
@pytest.mark.parametrize(
    "value",
    [SECRET, [SECRET], {SECRET: SECRET}, {"code": SECRET}, [{SECRET: [SECRET]}], [SECRET, None]],
    ids=repr,
)
def test_no_message_repeats_what_was_sent(kind: str, value: Any) -> None:
    assert SECRET not in repr(problems(Shape, {kind: value}))


@pytest.mark.parametrize("body", [SECRET, [SECRET]], ids=repr)
def test_no_failure_repeats_a_body_that_is_no_object(body: Any) -> None:
    with pytest.raises(Invalid) as raised:
        field_types.parse_body(Shape, body)
    assert SECRET not in repr((raised.value, raised.value.problems, raised.value.__cause__))


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)
BODIES = [operation for operation in OPERATIONS if operation.body_shape is not None]


@pytest.mark.parametrize("operation", BODIES, ids=lambda operation: operation.name)
@given(data=st.data())
def test_whatever_a_body_holds_it_is_read_or_refused_by_the_legacy_codes(
    operation: Any, data: st.DataObject
) -> None:
    names = st.sampled_from(sorted(operation.body_shape.__annotations__))
    body = data.draw(st.one_of(VALUES, st.dictionaries(names, VALUES)))
    found = problems(operation.body_shape, body)
    assert {one.code for one in found} <= {"invalid_field", "empty_field"}
    assert len(found) == len(set(found))


# Masks, countries


@pytest.mark.parametrize(
    ("value", "mask"),
    [("****47", True), ("*", True), ("123", False), ("", False), (None, False), (5, False)],
)
def test_a_mask_is_told_by_its_asterisk(value: Any, mask: bool) -> None:
    assert field_types.is_mask(value) is mask


@pytest.mark.parametrize(
    ("code", "country"),
    [
        ("GBR", "GB"),
        ("gb", "GB"),
        ("UK", None),
        ("ROU", "RO"),
        ("XK", "XK"),
        ("", None),
        ("U", None),
        ("USAA", None),
        ("12", None),
        ("\uff35\uff33", None),
    ],
)
def test_a_country_is_known_by_two_letters_or_by_three(code: str, country: str | None) -> None:
    assert field_types.find_alpha_2_code(code) == country
