"""Replaces personal data in recorded traffic by pseudonyms, so that it can still be replayed.

What the allow-list keeps, stays. Every other value gets a pseudonym of the same type and length: a
valid email a valid one, an IBAN one with valid check digits, otherwise letters letters and digits
digits. Equal values get equal pseudonyms, so a recorded search for an email still finds its
recipient. Without the salt they reveal nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from string import ascii_lowercase
from urllib.parse import quote, unquote

from gateway.compare.allowlist import AllowList
from gateway.compare.requests import OBJECT_ID, SECRET_PARAMETER
from gateway.compare.strict_json import (
    JSON,
    DuplicateKeyObject,
    InvalidJson,
    Number,
    dumps_strict,
    loads_strict,
)

OMITTED_BODY = "(left out: not JSON)"

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_IBAN = re.compile(r"[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}", re.ASCII)


@dataclass(frozen=True)
class Scrubber:
    """Scrubs one recording. ``salt`` is used for all of it and stored nowhere.

    ``api_keys`` are removed from all texts.
    """

    salt: bytes = field(repr=False)
    api_keys: Collection[str] = field(default=(), repr=False)
    allow_list: AllowList = field(default=AllowList(frozenset()))

    def scrub_body(self, text: str) -> str:
        """Scrubs a JSON text. Other content is left out: nothing is known about its fields."""
        if not text:
            return ""
        try:
            value = self._scrub_value(loads_strict(text.encode()), ())
            return self._remove_api_keys(dumps_strict(value))
        except (InvalidJson, RecursionError, UnicodeEncodeError):
            return OMITTED_BODY

    def scrub_target(self, target: str) -> str:
        """Scrubs path and query; parameters that hold secrets are left out."""
        path, _, query = target.partition("?")
        path = "/".join(
            part if self.allow_list.allows_path_part(part) else self._make_token(part)
            for part in path.split("/")
        )
        query = "&".join(self._scrub_parameters(query))
        return self._remove_api_keys(f"{path}?{query}" if query else path)

    def _scrub_parameters(self, query: str) -> Iterator[str]:
        for parameter in query.split("&"):
            name, separator, value = parameter.partition("=")
            if name and not SECRET_PARAMETER.fullmatch(name):
                text = self._scrub_text((name,), unquote(value.replace("+", " ")))
                yield f"{self._scrub_key(name)}{separator}{quote(text, safe='')}"

    def _scrub_key(self, key: str) -> str:
        return key if self.allow_list.allows_key(key) else self._make_token(key)

    def _scrub_value(self, value: JSON, fields: tuple[str, ...]) -> JSON:
        if isinstance(value, dict):
            pairs = {
                self._scrub_key(key): self._scrub_value(item, (*fields, key))
                for key, item in value.items()
            }
            if not isinstance(value, DuplicateKeyObject):
                return pairs
            # A replay must send the same malformed body, so duplicate keys stay.
            scrubbed = DuplicateKeyObject(pairs)
            scrubbed.duplicates = {
                self._scrub_key(key): [self._scrub_value(item, (*fields, key)) for item in items]
                for key, items in value.duplicates.items()
            }
            return scrubbed
        if isinstance(value, list):
            return [self._scrub_value(item, fields) for item in value]
        if isinstance(value, Number):
            is_kept = self.allow_list.allows_number(fields, value.text)
            return value if is_kept else Number(self._make_number(value.text))
        return self._scrub_text(fields, value) if isinstance(value, str) else value

    def _scrub_text(self, fields: tuple[str, ...], text: str) -> str:
        return self.allow_list.replace_text(fields, text, self._make_pseudonym)

    def _remove_api_keys(self, text: str) -> str:
        for key in self.api_keys:
            text = text.replace(key, "*" * 8)
        return text

    # Pseudonyms

    def _make_pseudonym(self, text: str) -> str:
        if OBJECT_ID.fullmatch(text):
            return self._make_token(text)
        if _EMAIL.fullmatch(text):
            # Case is ignored, because the service finds an email in any case.
            return f"{self._make_token(text.casefold())}@example.com"
        if _IBAN.fullmatch(text) and _compute_check_digits(text) == text[2:4]:
            return self._make_iban(re.sub(r"[ -]", "", text).upper())
        if _DATE.fullmatch(text):
            # Every combination of these digits is a valid date: years 1940-1999, days 10-19.
            digits = self._iter_digits(text)
            return f"19{4 + next(digits) % 6}{next(digits)}-0{1 + next(digits) % 9}-1{next(digits)}"
        # Each word alone, so that a first name is the same within a full name.
        return re.sub(r"\w+", lambda word: self._replace_characters(word[0]), text)

    def _make_token(self, text: str) -> str:
        """Returns a token. An id stays an id of its kind."""
        digest = hmac.digest(self.salt, text.encode(errors="replace"), hashlib.sha256)
        return f"{text[:2] if OBJECT_ID.fullmatch(text) else ''}x{digest.hex()[:12]}"

    def _make_number(self, text: str) -> str:
        # JSON forbids leading zeros.
        return re.sub(r"^(-?)0(?=\d)", r"\g<1>7", self._replace_characters(text))

    def _make_iban(self, text: str) -> str:
        """Returns an IBAN of the same country; a service refuses one with wrong check digits."""
        rest = self._replace_characters(text[4:])
        return f"{text[:2]}{_compute_check_digits(f'{text[:2]}00{rest}')}{rest}"

    def _replace_characters(self, text: str) -> str:
        """Replaces letters by letters of the same case and digits by digits."""
        digits = self._iter_digits(text.casefold())

        def replace_character(match: re.Match[str]) -> str:
            if match[0].isdigit():
                return str(next(digits))
            letter = ascii_lowercase[(next(digits) * 10 + next(digits)) % 26]
            return letter.upper() if match[0].isupper() else letter

        return re.sub(r"[^\W\d_]|\d", replace_character, text)

    def _iter_digits(self, text: str) -> Iterator[int]:
        """Yields digits without end, the same for the same text."""
        block = 0
        while True:
            # A digest has 32 digits; a longer text needs those of further blocks.
            message = f"{block}\n{text}".encode(errors="replace")
            yield from (byte % 10 for byte in hmac.digest(self.salt, message, hashlib.sha256))
            block += 1


def _compute_check_digits(iban: str) -> str:
    plain = re.sub(r"[ -]", "", iban).upper()
    number = "".join(str(int(char, 36)) for char in f"{plain[4:]}{plain[:2]}00")
    return f"{98 - int(number) % 97:02}"
