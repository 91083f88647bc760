"""Scrubbing of recorded traffic: no keys, no personal data, and still usable for comparison."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import schwifty
from hypothesis import given
from hypothesis import strategies as st

from gateway.compare.masking import OMITTED_BODY, Scrubber
from gateway.compare.requests import OBJECT_ID
from gateway.compare.strict_json import dumps_strict, loads_strict

KEY = "a-key-of-the-recorded"
SCRUBBER = Scrubber((KEY,))

PERSON = {
    "id": "R-aaaa",
    "referenceId": "customer-4711-marshmallow",
    "type": "individual",
    "status": "active",
    "name": "Quinta Marshmallow",
    "firstName": "Quinta",
    "lastName": "Marshmallow",
    "email": "quinta.marsh@private.example",
    "dob": "1815-12-10",
    "ssn": "078-05-1120",
    "passport": "X1234567P",
    "address": {
        "street1": "12 St James's Square",
        "city": "Knightsbridge",
        "region": "NY",
        "postalCode": "10118",
        "country": "US",
        "phone": "+1 212 555 0199",
    },
    "payout": {
        "primary": {"method": "bank", "currency": {"code": "USD", "name": "US Dollar"}},
        "methodDisplay": "Bank Transfer",
        "accounts": {
            "bank": {
                "name": "Quinta Marshmallow",
                "accountNum": "8812345678",
                "routing": "021000021",
                "iban": "DE89370400440532013000",
                "swiftBic": "COBADEFFXXX",
                "governmentId": "20123456789",
            },
            "wallet": {"address": "quinta.marsh@private.example"},
        },
    },
    "memo": "rent for Quinta in Knightsbridge",
    "sourceAmount": "1250.00",
    "createdAt": "2026-03-01T10:00:00.000Z",
    "unknown": "something of Quinta's",
    "nested": [{"accountNum": 8812345678, "amount": 10.50}],
}


def scrub_value(value: Any) -> Any:
    return json.loads(SCRUBBER.scrub_body(json.dumps(value)))


def test_data_needed_for_comparison_remains() -> None:
    scrubbed_person = scrub_value(PERSON)
    for name in ("id", "type", "status", "sourceAmount", "createdAt"):
        assert scrubbed_person[name] == PERSON[name]
    bank = scrubbed_person["payout"]["accounts"]["bank"]
    assert (bank["routing"], bank["swiftBic"]) == ("021000021", "COBADEFFXXX")
    assert scrubbed_person["payout"]["primary"]["currency"]["code"] == "USD"
    assert (scrubbed_person["address"]["country"], scrubbed_person["address"]["region"]) == (
        "US",
        "NY",
    )
    assert scrubbed_person.keys() >= PERSON.keys() - {"unknown", "nested"}
    assert len(scrubbed_person) == len(PERSON), "names that no document lists are replaced"


def test_replacement_has_the_shape_of_the_original() -> None:
    scrubbed_person = scrub_value(PERSON)
    assert scrubbed_person["email"] == "xxxxxx.xxxxx@example.com"
    assert scrubbed_person["name"] == "Xxxxxx Xxxxxxxxxxx"
    assert scrubbed_person["ssn"] == "111-11-1111"
    assert scrubbed_person["payout"]["accounts"]["bank"]["accountNum"] == "1111111111"
    assert scrubbed_person["dob"] == "1111-11-11"
    iban = schwifty.IBAN(scrubbed_person["payout"]["accounts"]["bank"]["iban"])
    assert iban.country_code == "DE"
    assert scrubbed_person["memo"] == "xxxx xxx Xxxxxx xx Xxxxxxxxxxxxx"


def test_search_finds_what_it_found() -> None:
    scrubbed_person = scrub_value(PERSON)
    assert scrubbed_person["payout"]["accounts"]["wallet"]["address"] == scrubbed_person["email"]
    url = SCRUBBER.scrub_target("/v1/recipients?search=quinta.marsh%40private.example")
    assert url == f"/v1/recipients?search={scrubbed_person['email'].replace('@', '%40')}"


@pytest.mark.parametrize(
    "text", ["<p>Quinta</p>", "{", '{"a":NaN}', '{"a":1,"a":2}', "Quinta", "[" * 100_000]
)
def test_non_json_body_is_omitted(text: str) -> None:
    assert SCRUBBER.scrub_body(text) == OMITTED_BODY


def test_numbers_keep_their_text() -> None:
    text = '{"amount":10.50,"value":1E2,"count":12,"a":{"b":1}}'
    assert dumps_strict(loads_strict(text.encode())) == text
    assert SCRUBBER.scrub_body('{"amount":10.50,"value":1.20}') == '{"amount":10.50,"value":1.20}'


def test_replaced_keys_do_not_become_one() -> None:
    assert SCRUBBER.scrub_body('{"Ada L":1,"Bob M":2,"Eve":3}') == '{"Xxx X":1,"Xxx Xx":2,"Xxx":3}'


def test_api_key_is_absent_from_scrubber_texts() -> None:
    assert KEY not in repr(SCRUBBER)


NAME_TEXTS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGH ÄÖé-'", min_size=8, max_size=30).filter(
    # An id remains as it is, and so does a text that has the form of a replaced one.
    lambda text: (
        len(text.replace(" ", "")) > 6
        and not OBJECT_ID.fullmatch(text)
        and set(text.lower()) - set("x -'")
        # A word of the documents, such as business, remains too.
        and re.search("[^a-z-]", text)
    )
)


@given(
    st.dictionaries(
        st.sampled_from(["name", "memo", "status", "iban", "street1", "country", "id", "code"]),
        NAME_TEXTS,
        min_size=1,
    )
)
def test_no_personal_text_remains_unchanged(texts: dict[str, str]) -> None:
    scrubbed_person = scrub_value(texts)
    for name, text in texts.items():
        assert scrubbed_person[name] != text
        assert len(scrubbed_person[name]) == len(text)


@given(st.from_regex(r"R-[A-Za-z0-9]{16}", fullmatch=True))
def test_ids_remain_unchanged(id_: str) -> None:
    assert scrub_value({"id": id_, "ids": [id_]}) == {"id": id_, "ids": [id_]}
    assert (
        SCRUBBER.scrub_target(f"/v1/recipients/{id_}/payments") == f"/v1/recipients/{id_}/payments"
    )
