"""Countries (section 4.6): names and currencies from CLDR, regions from ISO 3166-2."""

from functools import lru_cache

import pycountry
from babel import Locale
from babel.numbers import get_currency_name, get_territory_currencies

from gateway.simulator.countries import codes as listed
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.refusals import not_found
from gateway.simulator.wire import JsonObject

SUPPORTED = listed(
    "AF AL DZ AS AD AO AI AG AR AM AW AU AT AZ BS BH BD BB BY BE BZ BJ BM BT BO BQ BA BW BR BN BG "
    "BF BI KH CM CA KY CF TD CL CN CX CO KM CG CK CR HR CW CY CZ DK DJ DM DO EC EG SV GQ ER EE ET "
    "FK FO FJ FI FR GF PF TF GA GM GE DE GH GI GR GL GD GP GU GT GG GN GW GY HT HN HK HU IS IN ID "
    "IE IM IL IT JM JP JE JO KZ KE KI KR KW KG LA LV LS LI LT LU MO MK MG MW MY MV ML MT MH MQ MR "
    "MU YT MX FM MD MC MN ME MS MA MZ NA NP NL NC NZ NI NE NG NU NF MP NO OM PK PW PA PG PY PE PH "
    "PN PL PT PR QA RE RO RU RW MF SX WS SM ST SA SN RS SC SL SG SK SI SB ZA GS SS ES LK BL SH KN "
    "LC PM VC SR SJ SZ SE CH TW TJ TZ TH TL TG TK TO TT TN TR TM TC TV UG UA AE GB US UY UZ VA VU "
    "VN VG VI WF ZM"
)


def read_country(asked: Asked) -> JsonObject:
    """Raises ApiError `not_found` for unknown codes and for countries under sanctions."""
    code = asked.ids[0].upper()
    if code not in SUPPORTED:
        raise not_found("Country")
    return {"country": _country(code)}


@lru_cache
def _country(code: str) -> JsonObject:
    return {
        "name": Locale("en").territories[code],
        "code": code,
        "currency": _currency(code),
        "regions": _regions(code),
    }


def _currency(country: str) -> JsonObject:
    """Select a country's currency; of several, the one whose code begins with the country's."""
    # Currencies without an end date rather than today's, so that answers do not depend on the date.
    known = get_territory_currencies(country, include_details=True)
    codes = [each["currency"] for each in known if each["tender"] and each["to"] is None]
    code = next((each for each in codes if each.startswith(country)), codes[0])
    return {"code": code, "name": get_currency_name(code, locale="en")}


def _regions(country: str) -> JsonObject:
    found = (each for each in pycountry.subdivisions if each.country_code == country)
    named = sorted((str(each.code), str(each.name)) for each in found)
    return {code.partition("-")[2]: name for code, name in named}
