"""Validation of bank accounts and government ids by country.

It runs before the first call (current interface, sections 2.4 and 2.6), so that a refused request
has changed nothing and the error names the client's own field. Rules that the documents leave open
are left to the service.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from schwifty import BIC, IBAN
from schwifty.exceptions import SchwiftyException
from schwifty.registry import get_iban_spec

from mappings import objects
from mappings.effects import JSON, LegacyOptions
from mappings.failures import Problem, build_empty_field_problem, build_invalid_field_problem
from mappings.field_types import is_masked_value

_SEPARATORS = re.compile(r"[\s.\-/]")
_NO_LETTERS_OR_DIGITS = re.compile(r"[\W_]")
_IBAN_START = re.compile("[A-Z]{2}[0-9]{2}")


@dataclass(frozen=True, slots=True)
class DigitRule:
    """The format of an identifier: its length and, if it has other characters, a pattern."""

    min_length: int
    max_length: int
    label: str
    pattern: str = "[0-9]+"

    def strip_separators(self, text: str) -> str:
        """Removes the separators that people write in identifiers."""
        return _SEPARATORS.sub("", text)

    def is_match(self, text: str) -> bool:
        digits = self.strip_separators(text)
        is_long_enough = self.min_length <= len(digits) <= self.max_length
        return is_long_enough and bool(re.fullmatch(self.pattern, digits))

    def describe(self) -> str:
        count = f"{self.min_length}"
        if self.min_length != self.max_length:
            count += f" to {self.max_length}"
        kind = "digits" if self.pattern == "[0-9]+" else "characters"
        article = "an" if self.label[0] in "aeiouI" else "a"
        return f"must be {article} {self.label} of {count} {kind}"


BRANCH_RULES = {
    "US": DigitRule(9, 9, "routing number"),
    "AU": DigitRule(6, 6, "BSB"),
    "GB": DigitRule(6, 6, "sort code"),
    "CA": DigitRule(5, 5, "transit number"),
    "NZ": DigitRule(6, 6, "branch number"),
    "IN": DigitRule(11, 11, "IFSC", "[A-Za-z]{4}[0-9A-Za-z]{7}"),
}
"""Current interface, section 2.6: ``branchId`` by country."""

INSTITUTION_RULE = DigitRule(3, 3, "institution code")
"""Current interface, section 2.6: ``bankId``, required in Canada."""

_RUT_PATTERN = "[0-9]+[0-9Kk]"  # The check digit of a Chilean RUT may be the letter K.

PERSONAL_ID_RULES = {
    "AR": DigitRule(11, 11, "CUIT"),
    "AZ": DigitRule(10, 10, "TIN"),
    "BR": DigitRule(11, 11, "CPF"),
    "CL": DigitRule(9, 9, "RUT", _RUT_PATTERN),
    "CO": DigitRule(10, 10, "NIT"),
    "CR": DigitRule(9, 12, "Cedula Juridica"),
    "GT": DigitRule(8, 12, "NIT"),
    "KZ": DigitRule(12, 12, "IIN"),
    "PY": DigitRule(6, 11, "government id"),
}
BUSINESS_ID_RULES = {"AR": DigitRule(11, 11, "CUIT"), "BR": DigitRule(14, 14, "CNPJ")}
"""Current interface, section 2.4: government ids that bank transfers need."""

OPTIONAL_ID_RULES = {"US": DigitRule(9, 9, "social security number")}


@lru_cache(maxsize=512)
def is_iban_country(country: str) -> bool:
    """Whether the IBAN registry contains the country."""
    try:
        get_iban_spec(country)
    except SchwiftyException:
        return False
    return True


_IBAN_ONLY_COUNTRIES_TEXT = """
AD AT BE BG CH CY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV MC
MT NL NO PL PT RO SE SI SK SM VA
"""
IBAN_ONLY_COUNTRIES = frozenset(_IBAN_ONLY_COUNTRIES_TEXT.split())
"""SEPA countries, where an account can only be reached by its IBAN. Other countries in the IBAN
registry (GB with its sort codes, Brazil, Costa Rica, Kazakhstan and more) also use domestic
numbers."""


def normalize_iban(text: str) -> str:
    return re.sub(r"\s", "", text).upper()


def resolve_branch_id(bank: Mapping[str, JSON], shown_branch: JSON = None) -> JSON:
    """Returns the branch id that the client means.

    If it was sent under two names, the client changed the one that differs from the shown branch.
    """
    names = objects.BRANCH_NAMES_BY_COUNTRY.get(bank.get("country"), ())
    branches = [*filter(None, map(bank.get, names))]
    for branch in branches:
        if branch != shown_branch:
            return branch
    return branches[0] if branches else _extract_sort_code_from_iban(bank)


def _extract_sort_code_from_iban(bank: Mapping[str, JSON]) -> str | None:
    """Returns the sort code that a British IBAN contains, or None."""
    # A legacy client may send a British IBAN alone, and ``branchId`` is required (contract,
    # section 4).
    iban = normalize_iban(bank.get("iban") or "")
    if bank.get("country") != "GB" or not iban.startswith("GB"):
        return None
    parsed_iban = _parse_iban(iban)
    return (parsed_iban and parsed_iban.branch_code) or None


def extract_account_number_from_iban(iban: str) -> str | None:
    """Returns the domestic account number that an IBAN contains, or None."""
    parsed_iban = _parse_iban(iban)
    return (parsed_iban and parsed_iban.account_code) or None


def _parse_iban(text: str) -> IBAN | None:
    try:
        return IBAN(text)
    except SchwiftyException:
        return None


def choose_client_branch_field(bank: Mapping[str, JSON]) -> str:
    """Returns the client's own name for the branch id: the one it sent, else the country's."""
    names = objects.BRANCH_NAMES_BY_COUNTRY.get(bank.get("country"), ("branchNum",))
    for name in names:
        if bank.get(name):
            return name
    return names[0]


def validate_bank_account(bank: Mapping[str, JSON], prefix: str) -> Iterator[Problem]:
    """Validates a complete bank account; problems name the client's fields below ``prefix``."""
    if bank.get("country"):
        yield from _validate_branch(bank, prefix)
        yield from _validate_account_number(bank, prefix)
    else:
        yield build_empty_field_problem(f"{prefix}country")
    if (bic := bank.get("swiftBic")) and not _is_bic(bic):
        fault = "must be a BIC of 8 or 11 characters"
        yield build_invalid_field_problem(f"{prefix}swiftBic", fault)


def _validate_branch(bank: Mapping[str, JSON], prefix: str) -> Iterator[Problem]:
    country, branch = bank["country"], resolve_branch_id(bank)
    # A mask cannot be checked: it is compared with the shown one elsewhere.
    if rule := BRANCH_RULES.get(country):
        if not branch:
            yield build_empty_field_problem(prefix + choose_client_branch_field(bank))
        elif not is_masked_value(branch) and not rule.is_match(branch):
            field = prefix + choose_client_branch_field(bank)
            yield build_invalid_field_problem(field, rule.describe())
    names = objects.BRANCH_NAMES_BY_COUNTRY.get(country, ())
    if len({*map(bank.get, names)} - {None}) > 1:
        fault = "and routing name different branches"
        yield build_invalid_field_problem(f"{prefix}branchNum", fault)
    if country == "CA":
        institution = bank.get("institution")
        if not institution:
            yield build_empty_field_problem(f"{prefix}institution")
        elif not is_masked_value(institution) and not INSTITUTION_RULE.is_match(institution):
            yield build_invalid_field_problem(f"{prefix}institution", INSTITUTION_RULE.describe())


def _validate_account_number(bank: Mapping[str, JSON], prefix: str) -> Iterator[Problem]:
    country, iban, number = bank["country"], bank.get("iban"), bank.get("accountNum")
    if not is_iban_country(country):
        if not number:
            yield build_empty_field_problem(f"{prefix}accountNum")
    # Outside SEPA, either number is sufficient.
    elif not iban and (country in IBAN_ONLY_COUNTRIES or not number):
        yield build_empty_field_problem(f"{prefix}iban")
    if iban and not is_masked_value(iban) and not is_iban(iban):
        yield build_invalid_field_problem(f"{prefix}iban", "is not a valid IBAN")
    # Clients confuse the two fields; the service expects a domestic number here.
    if number and is_iban_in_any_notation(number):
        yield build_invalid_field_problem(
            f"{prefix}accountNum", "must not hold an IBAN; send it as iban"
        )


def validate_government_id(
    bank: Mapping[str, JSON], recipient_type: JSON, prefix: str, masked_id: JSON = None
) -> Iterator[Problem]:
    """Validates the government id; ``masked_id`` is the one that the service already has."""
    country = bank.get("country")
    rules = BUSINESS_ID_RULES if recipient_type == "business" else PERSONAL_ID_RULES
    required_rule = rules.get(str(country))
    rule = required_rule or OPTIONAL_ID_RULES.get(str(country))
    id_, field = bank.get("governmentId"), f"{prefix}governmentId"
    # A stored government id, of which only the mask is known, satisfies the requirement.
    if required_rule and not id_ and not masked_id:
        yield build_empty_field_problem(field)
    elif rule and id_ and not is_masked_value(id_) and not rule.is_match(id_):
        yield build_invalid_field_problem(field, rule.describe())


# Government ids of the recipient. The service stores a list, returns its values masked, and replaces
# the whole list on an update. The gateway can therefore only send the client's own entries.


class ClientGovernmentId(NamedTuple):
    """A government id that the client sent, and the field that it was sent in."""

    country: str
    value: str
    field: str


def build_government_id_entries(government_ids: list[ClientGovernmentId]) -> list[dict[str, str]]:
    """Builds ``governmentIds``, with one entry per country and type."""
    values = {country: value for country, value, _ in government_ids}
    return [
        {
            "country": country,
            "type": objects.GOVERNMENT_ID_TYPES.get(country, objects.OTHER_GOVERNMENT_ID),
            "value": value,
        }
        for country, value in values.items()
    ]


def validate_government_ids(
    government_ids: list[ClientGovernmentId],
    recipient: Mapping[str, JSON],
    options: LegacyOptions,
    *,
    is_shown_late: bool = False,
) -> Iterator[Problem]:
    """Refuses government ids that contradict each other, or that may delete another id.

    A recipient that is shown late may have others.
    """
    value_by_country: dict[str, str] = {}
    for country, value, field in government_ids:
        if value_by_country.setdefault(country, value) != value:
            yield build_invalid_field_problem(field, "differs from the ssn sent with it")
    sent_entries = build_government_id_entries(government_ids)
    lost_keys = {
        (entry.get("country"), entry.get("type")) for entry in recipient.get("governmentIds") or ()
    } - {(entry["country"], entry["type"]) for entry in sent_entries}
    may_lose_ids = bool(lost_keys) or is_shown_late
    if government_ids and may_lose_ids and options.government_ids == "keep":
        fault = "cannot be changed: the recipient has other government ids, which would be lost"
        yield build_invalid_field_problem(government_ids[0].field, fault)


def map_government_id_field_names_to_client(
    government_ids: list[ClientGovernmentId],
) -> dict[str, str]:
    """Maps ``governmentIds``, its entries, and ``ssn`` to the client's own fields."""
    if not government_ids:
        return {}
    names = {"governmentIds": government_ids[0].field}
    for index, (_country, _value, field) in enumerate(government_ids):
        names[f"governmentIds[{index}]"] = field
    # Some services report a US id under the name ``ssn``.
    us_field = next((field for country, _, field in government_ids if country == "US"), None)
    return {**names, "ssn": us_field} if us_field else names


def is_iban(text: str) -> bool:
    # Upper-casing turns some other letters into ASCII ones ("ß" becomes "SS").
    return text.isascii() and _parse_iban(normalize_iban(text)) is not None


def is_iban_in_any_notation(text: str) -> bool:
    """Whether it is an IBAN in any notation: with blanks or hyphens, or prefixed with "IBAN"."""
    compact = _NO_LETTERS_OR_DIGITS.sub("", unicodedata.normalize("NFKC", text)).upper()
    compact = compact.removeprefix("IBAN")
    return bool(_IBAN_START.match(compact)) and is_iban(compact)


def _is_bic(text: str) -> bool:
    if len(text) not in (8, 11) or not text.isascii():
        return False
    try:
        BIC(text.upper())
    except SchwiftyException:
        return False
    return True
