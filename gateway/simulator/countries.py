"""Tables of countries (current interface, sections 2.4 to 2.6), and IBANs."""

import pycountry
from schwifty import IBAN


def parse_country_codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


COUNTRIES = frozenset(country.alpha_2 for country in pycountry.countries)

# Section 2.4: minimum and maximum digits of the government id that a bank transfer needs.
INDIVIDUAL_ID_DIGITS = {
    "AR": (11, 11), "AZ": (10, 10), "BR": (11, 11), "CL": (9, 9), "CO": (10, 10), "CR": (9, 12),
    "GT": (8, 12), "KZ": (12, 12), "PY": (6, 11),
}  # fmt: skip
BUSINESS_ID_DIGITS = {"AR": (11, 11), "BR": (14, 14)}

# Section 2.5: countries in which a bank transfer needs the recipient's phone.
PHONE_COUNTRIES = parse_country_codes(
    "AR BD BR CL CN CO CR ET FJ GT JO KZ KI KR MN RU ZA TW TH TV TG TO"
)

# Section 2.6: patterns of bank and branch ids, in the countries that require them.
BANK_ID_PATTERNS = {"CA": r"[0-9]{3}"}
BRANCH_ID_PATTERNS = {
    "US": r"[0-9]{9}",
    "AU": r"[0-9]{6}",
    "GB": r"[0-9]{6}",
    "CA": r"[0-9]{5}",
    "NZ": r"[0-9]{6}",
    "IN": r"[A-Z]{4}[A-Z0-9]{7}",
}

# Section 2.6 names no countries in which bank transfers need `swiftBic`, bank address and city.
WIRE_COUNTRIES = parse_country_codes("AO BM BO BZ ET FJ GY HT JM KH MN MZ TO UZ ZM")

# Countries whose bank accounts have an IBAN, without Kosovo, which has no ISO 3166-1 code.
IBAN_COUNTRIES = parse_country_codes(
    "AD AE AL AT AZ BA BE BG BH BR BY CH CR CY CZ DE DK DO EE EG ES FI FO FR GB GE GI GL GR GT HR "
    "HU IE IL IS IT JO KW KZ LB LI LT LU LV MC MD ME MK MR MT MU NL NO PK PL PS PT QA RO RS SA SC "
    "SE SI SK SM SV TN TR UA VA VG"
)

# These countries have IBANs, which are accepted, but local transfers use other numbers: sort codes
# in the United Kingdom (the same table of section 2.6), account numbers in the others.
OPTIONAL_IBAN_COUNTRIES = frozenset({"GB", "BR", "CR", "DO", "GT", "SV", "MU", "SC", "VG"})

SEPA_COUNTRIES = parse_country_codes(
    "AD AT BE BG CH CY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV MC MT NL NO PL PT RO SE "
    "SI SK SM VA"
)


def is_country_code(value: object) -> bool:
    return isinstance(value, str) and value in COUNTRIES


def find_country_problem(value: object) -> str | None:
    return None if is_country_code(value) else "Must be ISO 3166-1 alpha-2"


def is_iban_required(country: str) -> bool:
    return country in IBAN_COUNTRIES and country not in OPTIONAL_IBAN_COUNTRIES


def find_government_id_digit_range(country: str, recipient_type: str) -> tuple[int, int] | None:
    digit_ranges = BUSINESS_ID_DIGITS if recipient_type == "business" else INDIVIDUAL_ID_DIGITS
    return digit_ranges.get(country)


def is_valid_iban(iban: str) -> bool:
    return bool(IBAN(iban, allow_invalid=True).is_valid)
