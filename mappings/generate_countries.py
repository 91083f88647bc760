"""Makes ``countries.json``: ``python -m mappings.generate_countries``.

For each country of the legacy interface, section 4.6:

- ``name``: CLDR's English name (babel), ``Czechia``, ``Hong Kong SAR China``.
- ``currency``: the legal tender to which CLDR knows no end, so that the day on which this runs
  changes nothing; its name in English. Where there are several, the country's own (see ``_tender``).
- ``regions``: every subdivision of ISO 3166-2 (pycountry), of each level: an address may name a
  department of France as well as its region. Codes are without the country's prefix (``US-CA`` is
  ``CA``), names as pycountry gives them. A country without subdivisions has none.

The same libraries give the same bytes; their versions stand at the head of the file.
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

from mappings.geography import FILE, Country

LISTED = """
AF AL DZ AS AD AO AI AG AR AM AW AU AT AZ BS BH BD BB BY BE BZ BJ BM BT BO BQ BA BW BR BN BG BF
BI KH CM CA KY CF TD CL CN CX CO KM CG CK CR HR CW CY CZ DK DJ DM DO EC EG SV GQ ER EE ET FK FO
FJ FI FR GF PF TF GA GM GE DE GH GI GR GL GD GP GU GT GG GN GW GY HT HN HK HU IS IN ID IE IM IL
IT JM JP JE JO KZ KE KI KR KW KG LA LV LS LI LT LU MO MK MG MW MY MV ML MT MH MQ MR MU YT MX FM
MD MC MN ME MS MA MZ NA NP NL NC NZ NI NE NG NU NF MP NO OM PK PW PA PG PY PE PH PN PL PT PR QA
RE RO RU RW MF SX WS SM ST SA SN RS SC SL SG SK SI SB ZA GS SS ES LK BL SH KN LC PM VC SR SJ SZ
SE CH TW TJ TZ TH TL TG TK TO TT TN TR TM TC TV UG UA AE GB US UY UZ VA VU VN VG VI WF ZM
"""
"""Section 4.6, supported country codes, in the document's order."""

COUNT = 222
"""How many there are in the document."""

ENGLISH = Locale("en")
SUBDIVISIONS: Any = pycountry.subdivisions  # its get() carries no types


def render_countries() -> str:
    """The text of the file; raises SystemExit where a code is doubled, lost or unknown."""
    codes = sorted(set(LISTED.split()))
    if not len(codes) == len(LISTED.split()) == COUNT:
        sys.exit(f"section 4.6 lists {COUNT} countries, not {len(codes)}")
    if unknown := [code for code in codes if not _known(code)]:
        sys.exit(f"CLDR and ISO 3166 do not both know {', '.join(unknown)}")
    content = {**collect_source_versions(), "countries": {code: _country(code) for code in codes}}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def collect_source_versions() -> dict[str, str]:
    return {
        "babel": version("babel"),
        "cldr": str(get_cldr_version()),
        "pycountry": version("pycountry"),
    }


def _known(code: str) -> bool:
    in_cldr = code in ENGLISH.territories and get_territory_currencies(code, date.max)
    return bool(in_cldr and pycountry.countries.get(alpha_2=code))


def _country(code: str) -> Country:
    tender = _tender(code)
    return {
        "name": ENGLISH.territories[code],
        "code": code,
        "currency": {"code": tender, "name": get_currency_name(tender, locale=ENGLISH)},
        "regions": _regions(code),
    }


def _tender(code: str) -> str:
    """The country's own tender, whose code begins with the country's (BTN of BT), else the oldest.

    Bhutan also has the rupee, Lesotho and Namibia the rand, Haiti and Panama the dollar. babel
    sorts them by age, which is not CLDR's order and would put rupee and rand first.
    """
    tender = get_territory_currencies(code, date.max)
    return next((one for one in tender if one.startswith(code)), tender[0])


def _regions(code: str) -> dict[str, str]:
    names = {one.code: one.name for one in SUBDIVISIONS.get(country_code=code)}
    return {full.removeprefix(f"{code}-"): names[full] for full in sorted(names)}


def main() -> None:
    FILE.write_bytes(render_countries().encode())
    sys.stdout.write(f"{FILE.name}: {COUNT} countries\n")


if __name__ == "__main__":
    main()
