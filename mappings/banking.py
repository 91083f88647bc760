"""Validation of bank accounts and government ids by country.

It runs before the first call (current interface, sections 2.4 and 2.6), so that a refused request
has changed nothing and the error names the client's own field. Rules that the documents leave open
are left to the service.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from schwifty import BIC, IBAN
from schwifty.exceptions import SchwiftyException
from schwifty.registry import get_iban_spec

from mappings import objects
from mappings.effects import JSON
from mappings.failures import Problem
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

    If both names are allowed and both were sent, the client changed the one that differs from the
    shown branch.
    """
    country = bank.get("country")
    if country == "US":
        return bank.get("routing")
    if country == "CA":
        return bank.get("branchNum")
    if country in objects.DUAL_BRANCH_NAME_COUNTRIES:
        branches = [bank[name] for name in ("branchNum", "routing") if bank.get(name)]
        changed_branches = [value for value in branches if value != shown_branch]
        return next(iter(changed_branches or branches), None) or _extract_sort_code_from_iban(bank)
    return None


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
    if bank.get("country") == "US":
        return "routing"
    has_two_names = bank.get("country") in objects.DUAL_BRANCH_NAME_COUNTRIES
    is_routing_sent = bank.get("routing") and not bank.get("branchNum")
    return "routing" if has_two_names and is_routing_sent else "branchNum"


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
    branches = {bank.get("routing"), bank.get("branchNum"), None}
    if country in objects.DUAL_BRANCH_NAME_COUNTRIES and len(branches) > 2:
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


def build_empty_field_problem(field: str) -> Problem:
    return Problem("empty_field", f"{field} is required.", field)


def build_invalid_field_problem(field: str, fault: str) -> Problem:
    return Problem("invalid_field", f"{field} {fault}.", field)
