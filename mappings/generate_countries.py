"""Generates ``countries.json``: ``python -m mappings.generate_countries``.

For each country of the legacy interface, section 4.6:

- ``name``: the English name from CLDR (babel), such as ``Czechia`` or ``Hong Kong SAR China``.
- ``currency``: the legal tender without an end date in CLDR, so that the output does not depend on
  the current date; its English name. ``_select_country_currency`` chooses if there are several.
- ``regions``: all subdivisions of ISO 3166-2 (pycountry) at every level, because an address may
  name a French department or region. Codes have no country prefix (``US-CA`` is ``CA``).

The output depends only on the versions of these libraries, which are stored at its beginning.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from importlib.metadata import version
from typing import Any

import pycountry
from babel import Locale
from babel.core import get_cldr_version
from babel.numbers import get_currency_name, get_territory_currencies

from mappings.geography import COUNTRIES_FILE, Country

COUNTRY_CODES = """
AF AL DZ AS AD AO AI AG AR AM AW AU AT AZ BS BH BD BB BY BE BZ BJ BM BT BO BQ BA BW BR BN BG BF
BI KH CM CA KY CF TD CL CN CX CO KM CG CK CR HR CW CY CZ DK DJ DM DO EC EG SV GQ ER EE ET FK FO
FJ FI FR GF PF TF GA GM GE DE GH GI GR GL GD GP GU GT GG GN GW GY HT HN HK HU IS IN ID IE IM IL
IT JM JP JE JO KZ KE KI KR KW KG LA LV LS LI LT LU MO MK MG MW MY MV ML MT MH MQ MR MU YT MX FM
MD MC MN ME MS MA MZ NA NP NL NC NZ NI NE NG NU NF MP NO OM PK PW PA PG PY PE PH PN PL PT PR QA
RE RO RU RW MF SX WS SM ST SA SN RS SC SL SG SK SI SB ZA GS SS ES LK BL SH KN LC PM VC SR SJ SZ
SE CH TW TJ TZ TH TL TG TK TO TT TN TR TM TC TV UG UA AE GB US UY UZ VA VU VN VG VI WF ZM
"""
"""Supported country codes, in the order of the document (legacy interface, section 4.6)."""

COUNTRY_COUNT = 222
"""Number of countries in the document, to detect a lost or duplicate code."""

ENGLISH_LOCALE = Locale("en")
SUBDIVISIONS: Any = pycountry.subdivisions  # Its get() has no type annotations.


def render_countries() -> str:
    """Renders the file. Raises SystemExit if a code is duplicate, missing or unknown."""
    codes = sorted(set(COUNTRY_CODES.split()))
    if not len(codes) == len(COUNTRY_CODES.split()) == COUNTRY_COUNT:
        sys.exit(f"section 4.6 lists {COUNTRY_COUNT} countries, not {len(codes)}")
    if unknown := [code for code in codes if not _is_known_code(code)]:
        sys.exit(f"CLDR and ISO 3166 do not both know {', '.join(unknown)}")
    content = {
        **collect_source_versions(),
        "countries": {code: _build_country(code) for code in codes},
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def collect_source_versions() -> dict[str, str]:
    return {
        "babel": version("babel"),
        "cldr": str(get_cldr_version()),
        "pycountry": version("pycountry"),
    }


def _is_known_code(code: str) -> bool:
    # date.max selects currencies without an end date, so that the output does not depend on today.
    has_cldr_entry = code in ENGLISH_LOCALE.territories and get_territory_currencies(code, date.max)
    return bool(has_cldr_entry and pycountry.countries.get(alpha_2=code))


def _build_country(code: str) -> Country:
    currency = _select_country_currency(code)
    return {
        "name": ENGLISH_LOCALE.territories[code],
        "code": code,
        "currency": {"code": currency, "name": get_currency_name(currency, locale=ENGLISH_LOCALE)},
        "regions": _build_regions(code),
    }


def _select_country_currency(code: str) -> str:
    """Selects the currency whose code begins with the country code (BTN of BT), else the oldest.

    Bhutan also uses the rupee, Lesotho and Namibia the rand, Haiti and Panama the dollar. babel
    sorts currencies by age, unlike CLDR, which would put the rupee and the rand first.
    """
    currencies = get_territory_currencies(code, date.max)
    return next((currency for currency in currencies if currency.startswith(code)), currencies[0])


def _build_regions(code: str) -> dict[str, str]:
    names = {
        subdivision.code: subdivision.name for subdivision in SUBDIVISIONS.get(country_code=code)
    }
    return {full.removeprefix(f"{code}-"): names[full] for full in sorted(names)}


def main() -> None:
    COUNTRIES_FILE.write_bytes(render_countries().encode())
    sys.stdout.write(f"{COUNTRIES_FILE.name}: {COUNTRY_COUNT} countries\n")


if __name__ == "__main__":
    main()
