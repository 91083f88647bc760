"""Geography (legacy interface, section 4.6): one operation, answered without a call.

Names and currencies are those of CLDR (babel), regions those of ISO 3166-2 (pycountry) at every
level, because an address may name a French department or region.
"""

from datetime import date
from functools import cache
from typing import Any

import pycountry
from babel import Locale
from babel.numbers import get_territory_currencies
from typing_extensions import TypedDict

from mappings.effects import Answer, Flow, Operation, Request
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.objects import look_up_currency_name

_COUNTRY_CODES_TEXT = """
AF AL DZ AS AD AO AI AG AR AM AW AU AT AZ BS BH BD BB BY BE BZ BJ BM BT BO BQ BA BW BR BN BG BF
BI KH CM CA KY CF TD CL CN CX CO KM CG CK CR HR CW CY CZ DK DJ DM DO EC EG SV GQ ER EE ET FK FO
FJ FI FR GF PF TF GA GM GE DE GH GI GR GL GD GP GU GT GG GN GW GY HT HN HK HU IS IN ID IE IM IL
IT JM JP JE JO KZ KE KI KR KW KG LA LV LS LI LT LU MO MK MG MW MY MV ML MT MH MQ MR MU YT MX FM
MD MC MN ME MS MA MZ NA NP NL NC NZ NI NE NG NU NF MP NO OM PK PW PA PG PY PE PH PN PL PT PR QA
RE RO RU RW MF SX WS SM ST SA SN RS SC SL SG SK SI SB ZA GS SS ES LK BL SH KN LC PM VC SR SJ SZ
SE CH TW TJ TZ TH TL TG TK TO TT TN TR TM TC TV UG UA AE GB US UY UZ VA VU VN VG VI WF ZM
"""
COUNTRY_CODES = frozenset(_COUNTRY_CODES_TEXT.split())
"""The supported countries (legacy interface, section 4.6), without the sanctioned ones."""

# Legacy interface, section 2: Country


class Currency(TypedDict):
    code: str
    name: str


class Country(TypedDict):
    name: str
    code: str
    currency: Currency
    regions: dict[str, str]
    """Region code to name; empty if ISO 3166-2 lists none."""


class CountryAnswer(TypedDict):
    country: Country


@cache
def build_country(code: str) -> Country:
    # Currencies without an end date, so that the answer does not depend on today.
    currencies = get_territory_currencies(code, date.max)
    # Of several, the one whose code begins with the country's (BTN of BT), else the oldest.
    currency = next((each for each in currencies if each.startswith(code)), currencies[0])
    subdivisions: Any = pycountry.subdivisions
    names = {each.code: each.name for each in subdivisions.get(country_code=code)}
    return {
        "name": Locale("en").territories[code],
        "code": code,
        "currency": {"code": currency, "name": look_up_currency_name(currency)},
        # In brackets are other names and codes: "Stockholms län [SE-01]".
        "regions": {
            full.removeprefix(f"{code}-"): names[full].partition(" [")[0] for full in sorted(names)
        },
    }


def read_country(request: Request) -> Flow:
    """Answers GET /geography/countries/:code.

    No call. A sanctioned country is not found, like any other unlisted code.
    """
    yield from ()  # Makes this function a generator, as every flow is.
    # Clients send it in lower case, too (contract, section 10).
    code = request.ids["code"]
    # ASCII only: "ß" in upper case is SS, South Sudan.
    if not code.isascii() or code.upper() not in COUNTRY_CODES:
        raise Invalid(NOT_FOUND)
    return Answer({"country": build_country(code.upper())})


OPERATIONS = (
    Operation(
        "GET",
        "/geography/countries/{code}",
        read_country,
        "exact",
        "answered by the gateway from CLDR (names, currency) and ISO 3166-2 (regions)",
        answer_shape=CountryAnswer,
        is_keyless=True,
        assumption="names and regions are those of CLDR and ISO 3166-2; the document names no source",
    ),
)
