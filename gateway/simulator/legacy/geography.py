"""Countries (section 4.6): names and currencies from CLDR, regions from ISO 3166-2."""

from functools import lru_cache

import pycountry
from babel import Locale
from babel.numbers import get_currency_name, get_territory_currencies

from gateway.simulator.countries import parse_country_codes
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy.legacy_request import LegacyRequest

SUPPORTED_COUNTRIES = parse_country_codes(
    "AF AL DZ AS AD AO AI AG AR AM AW AU AT AZ BS BH BD BB BY BE BZ BJ BM BT BO BQ BA BW BR BN BG "
    "BF BI KH CM CA KY CF TD CL CN CX CO KM CG CK CR HR CW CY CZ DK DJ DM DO EC EG SV GQ ER EE ET "
    "FK FO FJ FI FR GF PF TF GA GM GE DE GH GI GR GL GD GP GU GT GG GN GW GY HT HN HK HU IS IN ID "
    "IE IM IL IT JM JP JE JO KZ KE KI KR KW KG LA LV LS LI LT LU MO MK MG MW MY MV ML MT MH MQ MR "
    "MU YT MX FM MD MC MN ME MS MA MZ NA NP NL NC NZ NI NE NG NU NF MP NO OM PK PW PA PG PY PE PH "
    "PN PL PT PR QA RE RO RU RW MF SX WS SM ST SA SN RS SC SL SG SK SI SB ZA GS SS ES LK BL SH KN "
    "LC PM VC SR SJ SZ SE CH TW TJ TZ TH TL TG TK TO TT TN TR TM TC TV UG UA AE GB US UY UZ VA VU "
    "VN VG VI WF ZM"
)


def get_country(request: LegacyRequest) -> JsonObject:
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
