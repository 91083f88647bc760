"""Pseudonyms for personal values: same format, and the same pseudonym for the same value.

Without the salt they reveal nothing. With one salt for a recording a person has the same pseudonym
throughout, so that a recorded search for an email still finds its recipient.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_lowercase


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    salt: bytes

    def make_email(self, text: str) -> str:
        # Case is ignored, because the service finds an email in any case.
        digest = hmac.digest(self.salt, text.casefold().encode(errors="replace"), hashlib.sha256)
        return f"x{digest.hex()[:12]}@example.com"

    def make_words(self, text: str) -> str:
        """Replaces each word alone, so that a first name is the same within a full name."""
        return re.sub(r"\w+", lambda word: self._make_word(word[0]), text)

    def make_number(self, text: str) -> str:
        """Returns a JSON number with as many digits, without a leading zero, which JSON forbids."""
        digits = self._iter_deterministic_digits(text)
        replacement = re.sub(r"\d", lambda _: str(next(digits)), text)
        return re.sub(r"^(-?)0(?=\d)", r"\g<1>7", replacement)

    def make_iban(self, text: str) -> str:
        """Returns an IBAN with valid check digits; only the country is kept."""
        plain = re.sub(r"[ -]", "", text).upper()
        # The check digits are computed, because a service refuses an IBAN with wrong ones.
        rest = re.sub(r"[A-Z]|\d", self._create_replacer(plain), plain[4:])
        number = "".join(str(int(char, 36)) for char in f"{rest}{plain[:2]}00")
        return f"{plain[:2]}{98 - int(number) % 97:02}{rest}"

    def make_date(self, text: str) -> str:
        # Every combination of these digits is a valid date: years 1940-1999, days 10-19.
        digits = self._iter_deterministic_digits(text)
        return f"19{4 + next(digits) % 6}{next(digits)}-0{1 + next(digits) % 9}-1{next(digits)}"

    def make_token(self, text: str) -> str:
        digest = hmac.digest(self.salt, text.encode(errors="replace"), hashlib.sha256)
        return f"x{digest.hex()[:12]}"

    def _make_word(self, word: str) -> str:
        replacement = re.sub(r"[^\W\d_]|\d", self._create_replacer(word.casefold()), word)
        return "".join(
            new_char.upper() if old_char.isupper() else new_char
            for old_char, new_char in zip(word, replacement, strict=True)
        )

    def _create_replacer(self, text: str) -> _CharacterReplacer:
        return _CharacterReplacer(self._iter_deterministic_digits(text))

    def _iter_deterministic_digits(self, text: str) -> Iterator[int]:
        """Yields digits without end, the same for the same text."""
        block = 0
        while True:
            # A digest has 32 digits; a longer text needs those of further blocks.
            message = f"{block}\n{text}".encode(errors="replace")
            yield from (byte % 10 for byte in hmac.digest(self.salt, message, hashlib.sha256))
            block += 1


@dataclass(frozen=True, slots=True)
class _CharacterReplacer:
    """Replaces a letter by a letter of the same case and a digit by a digit."""

    digits: Iterator[int]

    def __call__(self, match: re.Match[str]) -> str:
        if match[0].isdigit():
            return str(next(self.digits))
        letter = ascii_lowercase[(next(self.digits) * 10 + next(self.digits)) % 26]
        return letter.upper() if match[0].isupper() else letter
