"""Countries: the list, the source of its data, and the codes that are accepted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings import generate_countries
from mappings.effects import Answer, Request
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.generate_countries import COUNTRY_CODES, COUNTRY_COUNT
from mappings.geography import COUNTRIES_FILE, load_countries, read_country

SANCTIONED = ["CD", "CU", "IR", "IQ", "CI", "KP", "LB", "LR", "LY", "MM", "SO", "SD", "SY", "VE"]
SANCTIONED += ["YE", "ZR", "ZW"]
AGAIN = "run `python -m mappings.generate_countries` and read the difference before checking it in"


def read(code: str) -> Any:
    """Return the country shown to a client; raise Invalid if it gets an error."""
    flow = read_country(Request(now=datetime(2026, 1, 1, tzinfo=UTC), ids={"code": code}))
    with pytest.raises(StopIteration) as end:
        next(flow)
    answer = end.value.value
    assert isinstance(answer, Answer)
    assert list(answer.body) == ["country"]
    return answer.body["country"]


def test_the_document_lists_222_countries_and_each_is_answered() -> None:
    assert len(COUNTRY_CODES.split()) == len(set(COUNTRY_CODES.split())) == COUNTRY_COUNT == 222
    assert sorted(COUNTRY_CODES.split()) == list(load_countries())
    for code in COUNTRY_CODES.split():
        assert read(code) == read(code.lower()) == load_countries()[code], code


def test_every_country_is_whole() -> None:
    for code, country in load_countries().items():
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


def test_generating_again_gives_the_same_bytes() -> None:
    kept = COUNTRIES_FILE.read_bytes()
    there = json.loads(kept)
    made_with = {name: there[name] for name in generate_countries.collect_source_versions()}
    now = generate_countries.collect_source_versions()
    assert made_with == now, (
        f"{COUNTRIES_FILE.name} was made with {made_with}, here is {now}: {AGAIN}"
    )
    same = generate_countries.render_countries().encode() == kept
    assert same, f"{COUNTRIES_FILE.name} is not what {now} give: {AGAIN}"


def test_generating_stops_at_a_list_that_is_not_the_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for listed in (
        COUNTRY_CODES + " AX",
        COUNTRY_CODES.replace(" ZM", ""),
        COUNTRY_CODES.replace("ZM", "ZA"),
    ):
        monkeypatch.setattr(generate_countries, "COUNTRY_CODES", listed)
        with pytest.raises(SystemExit, match="222"):
            generate_countries.render_countries()
    monkeypatch.setattr(generate_countries, "COUNTRY_CODES", COUNTRY_CODES.replace("ZM", "AN"))
    with pytest.raises(SystemExit, match="AN"):
        generate_countries.render_countries()


def test_a_sanctioned_country_is_not_found() -> None:
    assert len(set(SANCTIONED)) == 17
    for code in SANCTIONED:
        _is_not_found(code)
        _is_not_found(code.lower())


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
def test_any_other_code_is_not_found(code: str) -> None:
    _is_not_found(code)


def _is_not_found(code: str) -> None:
    with pytest.raises(Invalid) as refusal:
        next(read_country(Request(now=datetime(2026, 1, 1, tzinfo=UTC), ids={"code": code})))
    assert refusal.value.problems == (NOT_FOUND,)


def test_the_regions_are_those_of_iso_3166_2_of_every_level() -> None:
    assert {"ENG", "NIR", "SCT", "WLS", "LND"} <= read("GB")["regions"].keys()
    assert read("us")["regions"]["CA"] == "California"
    assert len(read("US")["regions"]) == 57, "states, district and outlying areas"
    assert {"IDF", "75C"} <= read("FR")["regions"].keys(), "a region and its part"
    assert read("HK")["regions"] == {}, "none is not an error"


def test_where_several_currencies_are_tender_the_countrys_own_is_shown() -> None:
    several = {"BT": "BTN", "HT": "HTG", "LS": "LSL", "NA": "NAD", "PA": "PAB"}
    assert {code: read(code)["currency"]["code"] for code in several} == several


def test_a_currency_that_has_ended_is_not_shown() -> None:
    new = {"HR": "EUR", "CW": "XCG", "SX": "XCG", "BY": "BYN", "SV": "USD", "ST": "STN"}
    assert {code: read(code)["currency"]["code"] for code in new} == new
