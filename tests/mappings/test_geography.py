"""Countries: the list, the source of its data, and the codes that are accepted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.effects import Answer, Request
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.geography import COUNTRY_CODES, read_country

SANCTIONED = ["CD", "CU", "IR", "IQ", "CI", "KP", "LB", "LR", "LY", "MM", "SO", "SD", "SY", "VE"]
SANCTIONED += ["YE", "ZR", "ZW"]


def load_country(code: str) -> Any:
    """Return the country shown to a client; raise Invalid if it gets an error."""
    flow = read_country(Request(now=datetime(2026, 1, 1, tzinfo=UTC), ids={"code": code}))
    with pytest.raises(StopIteration) as end:
        next(flow)
    answer = end.value.value
    assert isinstance(answer, Answer)
    assert list(answer.body) == ["country"]
    return answer.body["country"]


def test_each_of_222_documented_countries_is_answered() -> None:
    assert len(COUNTRY_CODES) == 222
    for code in COUNTRY_CODES:
        assert load_country(code) == load_country(code.lower()), code


def test_every_country_is_complete() -> None:
    for code in COUNTRY_CODES:
        country = load_country(code)
        assert list(country) == ["name", "code", "currency", "regions"], "the document's order"
        assert list(country["currency"]) == ["code", "name"]
        assert country["code"] == code
        assert country["name"] not in ("", code)
        assert country["currency"]["name"] not in ("", country["currency"]["code"]), code
        assert list(country["regions"]) == sorted(country["regions"])
        for region, name in country["regions"].items():
            assert region.isascii(), region
            assert region.isalnum(), f"{code}: {region}, without the country's prefix"
            assert name


def test_sanctioned_country_is_not_found() -> None:
    assert len(set(SANCTIONED)) == 17
    for code in SANCTIONED:
        check_not_found(code)
        check_not_found(code.lower())


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("AX", id="in ISO 3166, not in the document"),
        pytest.param("AN", id="no longer in ISO 3166"),
        pytest.param("XK", id="user-assigned"),
        pytest.param("USA", id="alpha-3"),
        pytest.param("840", id="numeric"),
        pytest.param("U", id="too short"),
        pytest.param("", id="empty"),
        pytest.param(" US", id="a space"),
        pytest.param("ß", id="SS in upper case"),
        pytest.param("\u0131t", id="dotless i, IT in upper case"),
        pytest.param("\uff35\uff33", id="full width"),
    ],
)
def test_unknown_code_is_not_found(code: str) -> None:
    check_not_found(code)


def check_not_found(code: str) -> None:
    with pytest.raises(Invalid) as refusal:
        next(read_country(Request(now=datetime(2026, 1, 1, tzinfo=UTC), ids={"code": code})))
    assert refusal.value.problems == (NOT_FOUND,)


def test_regions_are_iso_3166_2_of_every_level() -> None:
    assert {"ENG", "NIR", "SCT", "WLS", "LND"} <= load_country("GB")["regions"].keys()
    assert load_country("us")["regions"]["CA"] == "California"
    assert len(load_country("US")["regions"]) == 57, "states, district and outlying areas"
    assert {"IDF", "75C"} <= load_country("FR")["regions"].keys(), "a region and its part"
    assert load_country("HK")["regions"] == {}, "none is not an error"


def test_region_name_has_no_bracketed_notes() -> None:
    assert load_country("SE")["regions"]["AB"] == "Stockholms län", "not followed by [SE-01]"
    assert load_country("GB")["regions"]["WLS"] == "Wales", "not followed by [Cymru GB-CYM]"
    for code in COUNTRY_CODES:
        assert "[" not in "".join(load_country(code)["regions"].values()), code


def test_national_currency_is_shown_among_several() -> None:
    national_currencies = {"BT": "BTN", "HT": "HTG", "LS": "LSL", "NA": "NAD", "PA": "PAB"}
    assert {
        code: load_country(code)["currency"]["code"] for code in national_currencies
    } == national_currencies


def test_withdrawn_currency_is_not_shown() -> None:
    new_currencies = {"HR": "EUR", "CW": "XCG", "SX": "XCG", "BY": "BYN", "SV": "USD", "ST": "STN"}
    assert {
        code: load_country(code)["currency"]["code"] for code in new_currencies
    } == new_currencies
