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
from mappings.grammar import JSON, Problem
from mappings.kinds import is_mask


@dataclass(frozen=True, slots=True)
class Digits:
    """The format of an identifier: its length and, if it has other characters, a pattern."""

    least: int
    most: int
    called: str
    pattern: str = "[0-9]+"

    def bare(self, text: str) -> str:
        """Removes the separators that people write in identifiers."""
        return re.sub(r"[\s.\-/]", "", text)

    def fits(self, text: str) -> bool:
        bare = self.bare(text)
        return bool(re.fullmatch(self.pattern, bare)) and self.least <= len(bare) <= self.most

    def said(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        kind = "digits" if self.pattern == "[0-9]+" else "characters"
        article = "an" if self.called[0] in "aeiouI" else "a"
        return f"must be {article} {self.called} of {count} {kind}"


BRANCHES = {
    "US": Digits(9, 9, "routing number"),
    "AU": Digits(6, 6, "BSB"),
    "GB": Digits(6, 6, "sort code"),
    "CA": Digits(5, 5, "transit number"),
    "NZ": Digits(6, 6, "branch number"),
    "IN": Digits(11, 11, "IFSC", "[A-Za-z]{4}[0-9A-Za-z]{7}"),
}
"""Current interface, section 2.6: ``branchId`` by country."""

INSTITUTION = Digits(3, 3, "institution code")
"""Current interface, section 2.6: ``bankId``, required in Canada."""

_RUT = "[0-9]+[0-9Kk]"  # The check digit of a Chilean RUT may be the letter K.

PERSONAL_IDS = {
    "AR": Digits(11, 11, "CUIT"),
    "AZ": Digits(10, 10, "TIN"),
    "BR": Digits(11, 11, "CPF"),
    "CL": Digits(9, 9, "RUT", _RUT),
    "CO": Digits(10, 10, "NIT"),
    "CR": Digits(9, 12, "Cedula Juridica"),
    "GT": Digits(8, 12, "NIT"),
    "KZ": Digits(12, 12, "IIN"),
    "PY": Digits(6, 11, "government id"),
}
BUSINESS_IDS = {"AR": Digits(11, 11, "CUIT"), "BR": Digits(14, 14, "CNPJ")}
"""Current interface, section 2.4: government ids that bank transfers need."""

OPTIONAL_IDS = {"US": Digits(9, 9, "social security number")}


@lru_cache(maxsize=512)
def has_ibans(country: str) -> bool:
    """Tells if the IBAN registry contains the country."""
    try:
        get_iban_spec(country)
    except SchwiftyException:
        return False
    return True


SEPA = frozenset(
    [
        "AD",
        "AT",
        "BE",
        "BG",
        "CH",
        "CY",
        "CZ",
        "DE",
        "DK",
        "EE",
        "ES",
        "FI",
        "FR",
        "GR",
        "HR",
        "HU",
        "IE",
        "IS",
        "IT",
        "LI",
        "LT",
        "LU",
        "LV",
        "MC",
        "MT",
        "NL",
        "NO",
        "PL",
        "PT",
        "RO",
        "SE",
        "SI",
        "SK",
        "SM",
        "VA",
    ]
)
"""SEPA countries, where an account can only be reached by its IBAN. Other countries in the IBAN
registry (GB with its sort codes, Brazil, Costa Rica, Kazakhstan and more) also use domestic
numbers."""


def find_government_id_rule(country: JSON, recipient_type: JSON) -> Digits | None:
    return (BUSINESS_IDS if recipient_type == "business" else PERSONAL_IDS).get(country)


def normalize_iban(text: str) -> str:
    return re.sub(r"\s", "", text).upper()


def resolve_branch(bank: Mapping[str, JSON], shown: JSON = None) -> JSON:
    """Returns the branch id that the client means.

    If both names are allowed and both were sent, the client changed the one that differs from the
    shown branch.
    """
    country = bank.get("country")
    if country == "US":
        return bank.get("routing")
    if country == "CA":
        return bank.get("branchNum")
    if country in objects.EITHER_NAME:
        given = [bank[name] for name in ("branchNum", "routing") if bank.get(name)]
        changed = [value for value in given if value != shown]
        return next(iter(changed or given), None) or _sort_code(bank)
    return None


def _sort_code(bank: Mapping[str, JSON]) -> str | None:
    """Returns the sort code that a British IBAN contains, or None."""
    iban = normalize_iban(bank.get("iban") or "")
    if bank.get("country") != "GB" or not iban.startswith("GB"):
        return None
    try:
        return IBAN(iban).branch_code or None
    except SchwiftyException:
        return None


def extract_account_number(iban: str) -> str | None:
    """Returns the domestic account number that an IBAN contains, or None."""
    try:
        return IBAN(iban).account_code or None
    except SchwiftyException:
        return None


def choose_branch_field(bank: Mapping[str, JSON]) -> str:
    """Returns the client's own name for the branch id: the one it sent, else the country's."""
    if bank.get("country") == "US":
        return "routing"
    if (
        bank.get("country") in objects.EITHER_NAME
        and bank.get("routing")
        and not bank.get("branchNum")
    ):
        return "routing"
    return "branchNum"


def validate_bank_account(bank: Mapping[str, JSON], place: str) -> Iterator[Problem]:
    """Validates a complete bank account; problems name the client's fields below ``prefix``."""
    if bank.get("country"):
        yield from _branch_problems(bank, place)
        yield from _number_problems(bank, place)
    else:
        yield empty(f"{place}country")
    if (bic := bank.get("swiftBic")) and not _is_bic(bic):
        yield invalid(f"{place}swiftBic", "must be a BIC of 8 or 11 characters")


def _branch_problems(bank: Mapping[str, JSON], place: str) -> Iterator[Problem]:
    country, branch = bank["country"], resolve_branch(bank)
    field = place + choose_branch_field(bank)
    if rule := BRANCHES.get(country):
        if not branch:
            yield empty(field)
        elif not is_mask(branch) and not rule.fits(branch):
            yield invalid(field, rule.said())
    if (
        country in objects.EITHER_NAME
        and len({bank.get("routing"), bank.get("branchNum"), None}) > 2
    ):
        yield invalid(f"{place}branchNum", "and routing name different branches")
    if country == "CA":
        institution = bank.get("institution")
        if not institution:
            yield empty(f"{place}institution")
        elif not is_mask(institution) and not INSTITUTION.fits(institution):
            yield invalid(f"{place}institution", INSTITUTION.said())


def _number_problems(bank: Mapping[str, JSON], place: str) -> Iterator[Problem]:
    country, iban, number = bank["country"], bank.get("iban"), bank.get("accountNum")
    if not has_ibans(country):
        if not number:
            yield empty(f"{place}accountNum")
    # Outside SEPA either number will do.
    elif not iban and (country in SEPA or not number):
        yield empty(f"{place}iban")
    if iban and not is_mask(iban) and not is_iban(iban):
        yield invalid(f"{place}iban", "is not a valid IBAN")
    # Clients confuse the two fields; the service expects a domestic number here.
    if number and is_iban_like(number):
        yield invalid(f"{place}accountNum", "must not hold an IBAN; send it as iban")


def validate_government_id(
    bank: Mapping[str, JSON], recipient_type: JSON, place: str, held: JSON = None
) -> Iterator[Problem]:
    """Validates the government id; ``masked_id`` is the one that the service already has."""
    country = bank.get("country")
    needed = find_government_id_rule(country, recipient_type)
    rule = needed or OPTIONAL_IDS.get(str(country))
    given, field = bank.get("governmentId"), f"{place}governmentId"
    # A stored government id, of which only the mask is known, satisfies the requirement.
    if needed and not given and not held:
        yield empty(field)
    elif rule and given and not is_mask(given) and not rule.fits(given):
        yield invalid(field, rule.said())


def is_iban(text: str) -> bool:
    try:
        IBAN(normalize_iban(text))
    except SchwiftyException:
        return False
    # Upper-casing turns some other letters into ASCII ones ("ß" becomes "SS").
    return text.isascii()


def is_iban_like(text: str) -> bool:
    """Tells if it is an IBAN in any notation: with blanks or hyphens, or prefixed with "IBAN"."""
    bare = re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", text)).upper().removeprefix("IBAN")
    return bool(re.match("[A-Z]{2}[0-9]{2}", bare)) and is_iban(bare)


def _is_bic(text: str) -> bool:
    return len(text) in (8, 11) and text.isascii() and _has_bic_shape(text)


def _has_bic_shape(text: str) -> bool:
    try:
        BIC(text.upper())
    except SchwiftyException:
        return False
    return True


def empty(field: str) -> Problem:
    return Problem("empty_field", f"{field} is required.", field)


def invalid(field: str, what: str) -> Problem:
    return Problem("invalid_field", f"{field} {what}.", field)
