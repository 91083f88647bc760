"""IBANs (ISO 13616), as the service checks them (current interface, section 2.6)."""

import re

from gateway.simulator.countries import IBAN_LENGTH

SHAPE = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")


def compact(iban: str) -> str:
    """Remove the spaces between groups, and convert to upper case."""
    return iban.replace(" ", "").upper()


def _remainder(iban: str) -> int:
    moved = iban[4:] + iban[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97


def valid_iban(iban: str) -> bool:
    iban = compact(iban)
    if not SHAPE.fullmatch(iban):
        return False
    return len(iban) == IBAN_LENGTH.get(iban[:2], len(iban)) and _remainder(iban) == 1


def make_iban(country: str, domestic: str) -> str:
    """Build the IBAN of a domestic account number by computing its check digits."""
    return f"{country}{98 - _remainder(f'{country}00{domestic}'):02d}{domestic}"
