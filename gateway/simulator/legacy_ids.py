"""Ids for legacy clients: a letter and 16 characters (earlier interface, section 2)."""

import hashlib
import string

LENGTH = 16
DIGITS = string.digits + string.ascii_uppercase


def legacy_id(merchant: str, real: str) -> str:
    """Return the id unchanged if it fits, otherwise a shorter id derived from it."""
    letter, dash, tail = real.partition("-")
    if len(tail) <= LENGTH:
        return real
    # A hash, so that the id never changes: clients store it in their databases.
    number = int.from_bytes(hashlib.sha256(f"{merchant} {real}".encode()).digest(), "big")
    characters = []
    for _ in range(LENGTH):
        number, position = divmod(number, len(DIGITS))
        characters.append(DIGITS[position])
    return letter + dash + "".join(characters)
