"""Geography (legacy interface, section 4.6): one operation, answered here without a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

from typing_extensions import TypedDict

from mappings.errors import NOT_FOUND
from mappings.grammar import Answer, Flow, Invalid, Operation, Request

FILE = Path(__file__).with_name("countries.json")
"""Made by ``python -m mappings.generate_countries``, which says what is in it."""

# Section 2: Country


class Currency(TypedDict):
    code: str
    name: str


class Country(TypedDict):
    name: str
    code: str
    currency: Currency
    regions: dict[str, str]
    """Region code to name; empty where ISO 3166-2 has none."""


class CountryAnswer(TypedDict):
    country: Country


@cache
def load_countries() -> Mapping[str, Country]:
    """The countries of section 4.6, by code; the sanctioned ones are not among them.

    Read when first asked for, so that the script which makes the file can run without it.
    """
    return cast("dict[str, Country]", json.loads(FILE.read_bytes())["countries"])


def read_country(request: Request) -> Flow:
    """GET /geography/countries/:code

    No call. A sanctioned country is not found, like any other code that is not listed.
    """
    yield from ()  # a flow, though it has no step
    code = request.ids["code"]
    # ASCII alone: "ß" in upper case is SS, South Sudan.
    country = load_countries().get(code.upper()) if code.isascii() else None
    if country is None:
        raise Invalid(NOT_FOUND)
    return Answer({"country": country})


OPERATIONS = (
    Operation(
        "GET",
        "/geography/countries/{code}",
        read_country,
        "4.6",
        "exact",
        "answered here, from CLDR (names, currency) and ISO 3166-2 (regions)",
        gives=CountryAnswer,
        keyless=True,
        rests_on="the document names no source of names, currencies and region codes",
    ),
)
