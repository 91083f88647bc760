"""IBANs (ISO 13616), as the service checks them (current interface, section 2.6)."""

import re

from gateway.simulator.countries import IBAN_LENGTHS

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
