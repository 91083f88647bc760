"""Ids for legacy clients: a letter and 16 characters (legacy interface, section 2)."""

import hashlib
import string

MAX_SUFFIX_LENGTH = 16
ALPHABET = string.digits + string.ascii_uppercase


def build_legacy_id(merchant: str, service_id: str) -> str:
    """Returns the id unchanged if it fits, otherwise a shorter id derived from it."""
    prefix, dash, suffix = service_id.partition("-")
    if len(suffix) <= MAX_SUFFIX_LENGTH:
        return service_id
    # A hash, so that the id never changes: clients store it in their databases.
    # The merchant is part of it: two merchants must not see that they share an object's id.
    number = int.from_bytes(hashlib.sha256(f"{merchant} {service_id}".encode()).digest(), "big")
    characters = []
    for _ in range(MAX_SUFFIX_LENGTH):
        number, position = divmod(number, len(ALPHABET))
        characters.append(ALPHABET[position])
    return prefix + dash + "".join(characters)
