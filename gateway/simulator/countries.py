"""Tables of countries (current interface, sections 2.4 to 2.6), and IBANs (ISO 13616)."""

import re

import pycountry


def parse_country_codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


COUNTRIES = frozenset(country.alpha_2 for country in pycountry.countries)

# Section 2.4: minimum and maximum digits of the government id that a bank transfer needs.
INDIVIDUAL_ID_DIGITS = {
    "AR": (11, 11),
    "AZ": (10, 10),
    "BR": (11, 11),
    "CL": (9, 9),
    "CO": (10, 10),
    "CR": (9, 12),
    "GT": (8, 12),
    "KZ": (12, 12),
    "PY": (6, 11),
}
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

# IBAN length by country, without Kosovo, which has no ISO 3166-1 code.
IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22,
    "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28,
    "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23,
    "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IS": 26, "IT": 27,
    "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27,
    "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15, "PK": 24,
    "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "SV": 28, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
}  # fmt: skip

# These countries have IBANs, which are accepted, but local transfers use other numbers: sort codes
# in the United Kingdom (the same table of section 2.6), account numbers in the others.
OPTIONAL_IBAN_COUNTRIES = frozenset({"GB", "BR", "CR", "DO", "GT", "SV", "MU", "SC", "VG"})

SEPA_COUNTRIES = parse_country_codes(
    "AD AT BE BG CH CY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV MC MT NL NO PL PT RO SE "
    "SI SK SM VA"
)


def is_country_code(value: object) -> bool:
    return isinstance(value, str) and value in COUNTRIES


def is_iban_required(country: str) -> bool:
    return country in IBAN_LENGTHS and country not in OPTIONAL_IBAN_COUNTRIES


def find_government_id_digit_range(country: str, recipient_type: str) -> tuple[int, int] | None:
    digit_ranges = BUSINESS_ID_DIGITS if recipient_type == "business" else INDIVIDUAL_ID_DIGITS
    return digit_ranges.get(country)


IBAN_PATTERN = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")


def normalize_iban(iban: str) -> str:
    """Removes the spaces between groups, and converts to upper case."""
    return iban.replace(" ", "").upper()


def _compute_remainder(iban: str) -> int:
    rearranged = iban[4:] + iban[:4]
    # ISO 13616: letters count as 10 to 35, and the whole number has the remainder 1.
    return int("".join(str(int(character, 36)) for character in rearranged)) % 97


def is_valid_iban(iban: str) -> bool:
    iban = normalize_iban(iban)
    if not IBAN_PATTERN.fullmatch(iban):
        return False
    return len(iban) == IBAN_LENGTHS.get(iban[:2], len(iban)) and _compute_remainder(iban) == 1


def build_iban(country: str, domestic: str) -> str:
    """Builds the IBAN of a domestic account number by computing its check digits."""
    return f"{country}{98 - _compute_remainder(f'{country}00{domestic}'):02d}{domestic}"
