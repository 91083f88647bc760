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

    def email(self, text: str) -> str:
        digest = hmac.digest(self.salt, text.casefold().encode(errors="replace"), hashlib.sha256)
        return f"x{digest.hex()[:12]}@example.com"

    def words(self, text: str) -> str:
        """Replaces each word alone, so that a first name is the same within a full name."""
        return re.sub(r"\w+", lambda word: self._word(word[0]), text)

    def number(self, text: str) -> str:
        """A JSON number with as many digits, without a leading zero, which JSON forbids."""
        digits = self._digits(text)
        made = re.sub(r"\d", lambda _: str(next(digits)), text)
        return re.sub(r"^(-?)0(?=\d)", r"\g<1>7", made)

    def iban(self, text: str) -> str:
        """An IBAN with valid check digits; only the country is kept."""
        plain = re.sub(r"[ -]", "", text).upper()
        rest = re.sub(r"[A-Z]|\d", self._like(plain), plain[4:])
        number = "".join(str(int(one, 36)) for one in f"{rest}{plain[:2]}00")
        return f"{plain[:2]}{98 - int(number) % 97:02}{rest}"

    def day(self, text: str) -> str:
        # Every combination of these digits is a valid date: years 1940-1999, days 10-19.
        digits = self._digits(text)
        return f"19{4 + next(digits) % 6}{next(digits)}-0{1 + next(digits) % 9}-1{next(digits)}"

    def token(self, text: str) -> str:
        digest = hmac.digest(self.salt, text.encode(errors="replace"), hashlib.sha256)
        return f"x{digest.hex()[:12]}"

    def _word(self, word: str) -> str:
        made = re.sub(r"[^\W\d_]|\d", self._like(word.casefold()), word)
        return "".join(
            new.upper() if old.isupper() else new for old, new in zip(word, made, strict=True)
        )

    def _like(self, of: str) -> _Like:
        return _Like(self._digits(of))

    def _digits(self, text: str) -> Iterator[int]:
        """Yields digits without end, the same for the same text."""
        block = 0
        while True:
            message = f"{block}\n{text}".encode(errors="replace")
            yield from (one % 10 for one in hmac.digest(self.salt, message, hashlib.sha256))
            block += 1


@dataclass(frozen=True, slots=True)
class _Like:
    """Replaces a letter by a letter of the same case and a digit by a digit."""

    digits: Iterator[int]

    def __call__(self, found: re.Match[str]) -> str:
        if found[0].isdigit():
            return str(next(self.digits))
        letter = ascii_lowercase[(next(self.digits) * 10 + next(self.digits)) % 26]
        return letter.upper() if found[0].isupper() else letter
