"""Countries (section 4.6): names and currencies from CLDR, regions from ISO 3166-2."""

from functools import lru_cache

import pycountry
from babel import Locale
from babel.numbers import get_currency_name, get_territory_currencies

from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.countries import COUNTRIES, parse_country_codes
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.json_codec import JsonObject

# Section 4.6 lists all countries but these.
SUPPORTED_COUNTRIES = COUNTRIES - parse_country_codes(
    "AQ AX BV CC CD CI CU CV EH HM IO IQ IR KP LB LR LY MM NR PS SD SO SY UM VE YE ZW"
)


def get_country(request: AcceptedRequest) -> JsonObject:
    """Raises ApiError `not_found` for unknown codes and for countries under sanctions."""
    code = request.path_ids[0].upper()
    if code not in SUPPORTED_COUNTRIES:
        raise build_not_found_error("Country")
    return {"country": _build_country(code)}


@lru_cache
def _build_country(code: str) -> JsonObject:
    return {
        "name": Locale("en").territories[code],
        "code": code,
        "currency": _build_currency(code),
        "regions": _build_regions(code),
    }


def _build_currency(country: str) -> JsonObject:
    """Selects a country's currency; of several, the one whose code begins with the country's."""
    # Currencies without an end date rather than today's, so that answers do not depend on the date.
    currencies = get_territory_currencies(country, include_details=True)
    codes = [
        currency["currency"]
        for currency in currencies
        if currency["tender"] and currency["to"] is None
    ]
    code = next((candidate for candidate in codes if candidate.startswith(country)), codes[0])
    return {"code": code, "name": get_currency_name(code, locale="en")}


def _build_regions(country: str) -> JsonObject:
    subdivisions = (
        subdivision for subdivision in pycountry.subdivisions if subdivision.country_code == country
    )
    code_and_names = sorted(
        (str(subdivision.code), str(subdivision.name)) for subdivision in subdivisions
    )
    return {code.partition("-")[2]: name for code, name in code_and_names}
