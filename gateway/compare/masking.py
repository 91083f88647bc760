"""Decides which values reports show and recordings keep, and replaces all others by type and length.

A value is kept because its field is listed and it has the format of that field; everything else is
replaced. The field name alone is not enough: an email in ``status`` is replaced too. In reports
letters and digits become ``*``. In recordings letters become ``x`` and digits ``1``, so that requests
can still be sent: an email stays a valid email, an IBAN one with valid check digits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from urllib.parse import quote, unquote

from schwifty import IBAN
from schwifty.exceptions import SchwiftyException
from typing_extensions import is_typeddict

from gateway.compare import paths
from gateway.compare.paths import Path
from gateway.compare.report_schema import Value
from gateway.compare.requests import OBJECT_ID, SECRET_PARAMETER, is_public_path_part
from gateway.compare.strict_json import (
    ABSENT,
    JSON,
    InvalidJson,
    Number,
    describe_json_type,
    dumps_strict,
    loads_strict,
)
from mappings import current, legacy

_TYPED_DICTS = [
    value for module in (legacy, current) for value in vars(module).values() if is_typeddict(value)
]

# From the declared shapes, so that a field that is added to one is kept here too.
_DOCUMENT_FIELDS = frozenset(
    {name for typed_dict in _TYPED_DICTS for name in typed_dict.__annotations__}
    | {"ok", "errors", "code", "message", "field", "balances", "dealId"}
    | {"ip", "method", "headers", "source", "testMode", "name", "regions"}
)

_DOCUMENT_WORDS_TEXT = """
individual business active incomplete inactive disabled suspended archived pending verified blocked
review open processing accepted complete processed failed returned bank wallet service bank-transfer
mobile-money cash debit-card check mobile-wallet created updated deleted completed API api status
country city name email id complianceStatus createdAt updatedAt type referenceId payoutMethod asc
desc eft ach fps sepa wire transfer invalid_token invalid_api_key not_authorized not_found
invalid_status invalid_field empty_field expired_quote rate_limit_exceeded internal_server_error
partner_integration_error
"""
_DOCUMENT_WORDS = frozenset(_DOCUMENT_WORDS_TEXT.split())
"""Statuses, methods, codes and sort orders (legacy and current interface, sections 2 to 4 and 7)."""

_PERSONAL_FIELDS_TEXT = """
name firstName lastName accountHolderName email emailAddress address street1 street2 city
postalCode phone phoneNumber passport ssn governmentId accountNum accountNumber iban dob
bankAddress bankCity bankPostalCode placeOfBirth memo description
"""
_PERSONAL_FIELDS = frozenset(_PERSONAL_FIELDS_TEXT.split())
"""In these fields a text that looks like an id is not trusted to be one."""

_ENUM_FIELDS = {
    "status", "complianceStatus", "type", "method", "payoutMethod", "object", "code", "orderBy",
    "sortBy", "accountType", "processed_by", "source", "routeType", "methodDisplay", "displayName",
}  # fmt: skip
_AMOUNT_FIELDS = (
    "amount", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees", "recipientFees",
    "merchantFees", "value", "net", "routeMinimum", "estimatedFees",
)  # fmt: skip
_COUNT_FIELDS = (
    "count", "limit", "page", "pages", "pageSize", "records", "totalPayments", "retry-after",
    "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset",
)  # fmt: skip

_FORMAT_BY_FIELDS = {
    _AMOUNT_FIELDS: r"[+-]?\d{1,15}(\.\d{1,10})?",
    _COUNT_FIELDS: r"[+-]?\d{1,6}",
    (
        "currency", "sourceCurrency", "targetCurrency", "primaryCurrency", "payoutCurrency",
        "code", "country", "countryCode",
    ): r"[A-Z]{2,3}",
    # Years before 2010 do not match: the service did not exist, and such a date may be a birth date.
    (
        "createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "checkedAt", "serverTime",
        "quoteExpiredAt", "startDate", "endDate",
    ): r"20[1-9]\d-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?",
    ("region", "bankProvince", "bankRegion", "bankRegionCode"): r"([A-Z]{2}-)?[A-Z0-9]{1,3}",
    # Of CA, AU, NZ and GB, or of IN (current interface, section 2.6).
    ("branchNum", "branch", "branchId"): r"\d{3,6}|[A-Z]{4}0[A-Z0-9]{6}",
    ("institution", "bankId"): r"\d{1,4}",
    ("swiftBic",): r"[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?",
    ("language",): r"[a-z]{2}([-_][A-Za-z]{2})?",
    ("content-type",): r"[a-z]{1,20}/[a-z.+-]{1,40}(; ?charset=[A-Za-z0-9-]{1,20})?",
    ("access-control-allow-origin",): r"\*",
}  # fmt: skip
_FORMAT_BY_FIELD = {
    field: re.compile(pattern, re.ASCII)
    for fields, pattern in _FORMAT_BY_FIELDS.items()
    for field in fields
}
_TOTAL_FIELD = re.compile(r"[A-Z][A-Za-z]{1,30}Total")
_ENUM_WORD = re.compile(r"[a-z]{1,16}([_-][a-z]{1,16}){0,5}|API")
_FIELD_NAME = re.compile(r"[a-z_][A-Za-z_-]{0,63}\d{0,2}|[A-Z0-9]{1,3}")
_GEOGRAPHIC_NAME = re.compile(r"[^\W\d_][^\d_@*]{0,60}")


@dataclass(frozen=True)
class AllowList:
    """``words`` are the service's own words, which are kept beside those of the documents.

    With None, for reports, any text with the form of a status or field name is kept where one is
    expected: a reader needs to see a status that no document has.
    """

    words: frozenset[str] | None = None

    def allows_text(self, fields: tuple[str, ...], text: str) -> bool:
        """Whether a text is kept. ``fields`` are the keys of its path, without indices."""
        field = _select_field_name(fields)
        if not text or re.fullmatch(r"\*{2,}[A-Za-z0-9]{0,4}", text):
            return True
        if OBJECT_ID.fullmatch(text):
            return field not in _PERSONAL_FIELDS and self.allows_id(text)
        if field == "field":
            parts = [part for part in re.split(r"[\[\].]", text) if part]
            return all(self.allows_key(part) or re.fullmatch(r"\d{1,6}", part) for part in parts)
        if field in _ENUM_FIELDS and self._allows_word(text, _ENUM_WORD):
            return True
        if field == "routing":
            return _is_routing_number(text)
        if field == "name" and fields[0] == "country":
            # Only answers about countries have such an object.
            return bool(_GEOGRAPHIC_NAME.fullmatch(text))
        value_format = _FORMAT_BY_FIELD.get(field)
        return value_format is not None and bool(value_format.fullmatch(text))

    def allows_number(self, fields: tuple[str, ...], text: str) -> bool:
        """Whether a JSON number is kept. It may be an account number."""
        field = _select_field_name(fields)
        if field in (*_AMOUNT_FIELDS, *_COUNT_FIELDS):
            return self.allows_text((field,), text)
        # Few enough digits for a flag or a count, too few for an account or a phone number.
        return len(text) <= 3 and field not in _PERSONAL_FIELDS

    def allows_key(self, key: str) -> bool:
        """Whether an object key is a field, a method or a currency code, and not personal data."""
        return (
            key in _DOCUMENT_FIELDS
            or bool(re.fullmatch("[A-Z]{3}", key) or (self.words is None and self.allows_id(key)))
            or bool(_TOTAL_FIELD.fullmatch(key) and self.words is None)
            or self._allows_word(key, _FIELD_NAME)
        )

    def allows_path_part(self, part: str) -> bool:
        is_known = part in (self.words or ()) or is_public_path_part(part)
        return is_known and (self.allows_id(part) or not OBJECT_ID.fullmatch(part))

    def allows_id(self, text: str) -> bool:
        """Whether a text is an id; it is none of digits alone, which somebody may have typed."""
        return bool(OBJECT_ID.fullmatch(text)) and not re.fullmatch(r"[RB]-\d{7,15}", text)

    def _allows_word(self, text: str, pattern: re.Pattern[str]) -> bool:
        if self.words is None:
            return bool(pattern.fullmatch(text))
        return text in _DOCUMENT_WORDS or text in self.words


def _select_field_name(fields: tuple[str, ...]) -> str:
    """Returns the field of a value; ``amount`` for totals and for balances keyed by currency."""
    field = fields[-1] if fields else ""
    is_amount = fields[-2:-1] == ("merchantBalances",) or _TOTAL_FIELD.fullmatch(field)
    return "amount" if is_amount else field


def _is_routing_number(text: str) -> bool:
    """Whether a text is a US routing number: nine digits with a valid check digit."""
    # The ABA checksum: the weighted sum of the digits is a multiple of ten.
    return bool(re.fullmatch(r"\d{9}", text, re.ASCII)) and (
        sum(weight * int(digit) for weight, digit in zip((3, 7, 1) * 3, text, strict=True)) % 10
        == 0
    )


MAX_VALUE_CHARS = 160
"""Longer values are cut off."""

API_KEY_PLACEHOLDER = "(an API key)"

MIN_API_KEY_CHARS = 6
"""A shorter text is not an API key, and replacing it would garble ordinary words."""

_PLACEHOLDER = re.compile(r"(\$\{[\w-]+\})")
"""A placeholder for a captured value."""

OMITTED_BODY = "(left out: not JSON)"

_IBAN = re.compile(r"[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}", re.ASCII)
"""Cheaper than parsing each text."""

_ALLOW_LIST = AllowList()


def mask_text(text: str) -> str:
    # All characters except white space and ASCII punctuation.
    return re.sub(r"[^\s!-/:-@\[-`{-~]", "*", text)


def fill_text(text: str) -> str:
    """Returns a text of the same type and length that a service accepts in the same field."""
    if _IBAN.fullmatch(text):
        with suppress(SchwiftyException):
            iban = IBAN(text)
            filler = _fill_characters(iban.bban).upper()
            return str(IBAN.from_bban(iban.country_code, filler, allow_invalid=True))
    if OBJECT_ID.fullmatch(text):
        return f"{text[:2]}{_fill_characters(text[2:])}"
    local_part, separator, domain = text.rpartition("@")
    # A made-up domain could be somebody's.
    is_email = separator and re.fullmatch(r"[^@\s]+\.[^@\s]+", domain)
    return f"{_fill_characters(local_part)}@example.com" if is_email else _fill_characters(text)


def _fill_characters(text: str) -> str:
    letters = re.sub(r"[^\W\d_]", lambda match: "X" if match[0].isupper() else "x", text)
    return re.sub(r"\d", "1", letters)


def _fill_percent_encoded(text: str) -> str:
    return quote(fill_text(unquote(text)), safe="")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks values and paths. ``api_keys`` are removed from every text."""

    api_keys: tuple[str, ...] = ()
    is_unmasked: bool = False

    def redact_value(self, path: Path, value: Any) -> Value:
        text = self._format_value(path, value)
        return {
            "type": describe_json_type(value),
            "text": text,
            "parts": [{"text": text, "differs": False}],
        }

    def redact_pair_and_mark_differences(
        self, path: Path, control: Any, candidate: Any
    ) -> tuple[Value, Value]:
        """Redacts both values and marks the parts that differ."""
        displays = self.redact_value(path, control), self.redact_value(path, candidate)
        texts = displays[0]["text"], displays[1]["text"]
        start = end = 0
        if displays[0]["type"] == displays[1]["type"] and control != candidate:
            # Masking keeps lengths; then positions in the values hold for the displayed texts too.
            if isinstance(control, str) and tuple(map(len, texts)) == (
                len(control),
                len(candidate),
            ):
                texts = control, candidate
            if texts[0] != texts[1]:
                start = _count_common_prefix(*texts)
                end = _count_common_prefix(*(text[start:][::-1] for text in texts))
        for display in displays:
            _mark_range(display, start, end, differs=control != candidate)
        return displays

    def redact_path(self, path: Path) -> str:
        return paths.format_path(tuple(map(self._redact_part, path)))

    def redact_normal_path(self, path: Path) -> str:
        return paths.normalize_path(tuple(map(self._redact_part, path)))

    def _redact_part(self, part: str | int) -> str | int:
        return part if isinstance(part, int | paths.PseudoKey) else self.redact_object_key(part)

    def redact_object_key(self, key: str) -> str:
        if self._can_show(key, _ALLOW_LIST.allows_key(key)):
            return key
        return API_KEY_PLACEHOLDER if self.remove_api_keys(key) != key else mask_text(key)

    def redact_target(self, target: str) -> str:
        """Redacts the path and query of a request."""
        path, separator, query = target.partition("?")
        parts = [
            part
            if self._can_show(
                part, _ALLOW_LIST.allows_path_part(part) or bool(_PLACEHOLDER.fullmatch(part))
            )
            else "…"
            for part in path.split("/")
        ]
        return "/".join(parts) + separator + "&".join(map(self._redact_parameter, query.split("&")))

    def remove_api_keys(self, text: str) -> str:
        """Replaces API keys in a text that needs no other masking."""
        for key in self.api_keys:
            if len(key) >= MIN_API_KEY_CHARS:
                text = text.replace(key, API_KEY_PLACEHOLDER)
        return text

    def _redact_parameter(self, parameter: str) -> str:
        name, separator, value = parameter.partition("=")
        if not separator:
            return self.redact_object_key(name)
        parts = [
            part
            if _PLACEHOLDER.fullmatch(part)
            else self._redact_text((name,), unquote(part.replace("+", " ")))
            for part in _PLACEHOLDER.split(value)
        ]
        return f"{self.redact_object_key(name)}={''.join(parts)}"

    def _can_show(self, text: str, is_allowed: bool) -> bool:
        # A key stays hidden in its percent-encoded form too.
        return (is_allowed or self.is_unmasked) and all(
            self.remove_api_keys(spelling) == spelling for spelling in (text, unquote(text))
        )

    def _format_value(self, path: Path, value: Any) -> str:
        fields = tuple(part for part in path if isinstance(part, str) and part != "@header")
        if isinstance(value, str):
            return self._redact_text(fields, value)
        if isinstance(value, Number):
            is_allowed = _ALLOW_LIST.allows_number(fields, value.text)
            return value.text if self._can_show(value.text, is_allowed) else mask_text(value.text)
        if isinstance(value, dict):
            return f"{{…}} {len(value)} field{'' if len(value) == 1 else 's'}"
        if isinstance(value, list):
            return f"[…] {len(value)} item{'' if len(value) == 1 else 's'}"
        if value is ABSENT:
            return "nothing"
        return dumps_strict(value)

    def _redact_text(self, fields: tuple[str, ...], text: str) -> str:
        # JSON may hold lone surrogates, which no output encoding accepts.
        text = text.encode("utf-8", "backslashreplace").decode()
        # Also if values are shown: API keys never are.
        if self.remove_api_keys(text) != text:
            return API_KEY_PLACEHOLDER
        is_shown = self.is_unmasked or _ALLOW_LIST.allows_text(fields, text)
        display_text = text if is_shown else mask_text(text)
        is_long = len(display_text) > MAX_VALUE_CHARS
        return f"{display_text[:MAX_VALUE_CHARS]}…" if is_long else display_text


@dataclass(frozen=True)
class Scrubber:
    """Replaces values in recorded traffic. ``api_keys`` are removed from all texts."""

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
            part if self.allow_list.allows_path_part(part) else _fill_percent_encoded(part)
            for part in path.split("/")
        )
        query = "&".join(self._scrub_parameters(query))
        return self._remove_api_keys(f"{path}?{query}" if query else path)

    def _scrub_parameters(self, query: str) -> Iterator[str]:
        for parameter in query.split("&"):
            name, separator, value = parameter.partition("=")
            if name and not SECRET_PARAMETER.fullmatch(name):
                text = self._scrub_value(unquote(value.replace("+", " ")), (name,))
                is_kept = self.allow_list.allows_key(name)
                yield f"{name if is_kept else _fill_percent_encoded(name)}{separator}{quote(text, safe='')}"

    def _scrub_value(self, value: JSON, fields: tuple[str, ...]) -> JSON:
        if isinstance(value, dict):
            scrubbed: dict[str, JSON] = {}
            for key, item in value.items():
                name = key if self.allow_list.allows_key(key) else fill_text(key)
                # Two keys that are replaced must not become one.
                while name in scrubbed:
                    name += "x"
                scrubbed[name] = self._scrub_value(item, (*fields, key))
            return scrubbed
        if isinstance(value, list):
            return [self._scrub_value(item, fields) for item in value]
        if isinstance(value, Number):
            is_kept = self.allow_list.allows_number(fields, value.text)
            return value if is_kept else Number(re.sub(r"\d", "1", value.text))
        if isinstance(value, str):
            return value if self.allow_list.allows_text(fields, value) else fill_text(value)
        return value

    def _remove_api_keys(self, text: str) -> str:
        for key in self.api_keys:
            text = text.replace(key, "*" * 8)
        return text


def _mark_range(display: Value, start: int, end: int, *, differs: bool) -> None:
    text, stop = display["text"], len(display["text"]) - end
    display["parts"] = [
        {"text": part, "differs": is_marked}
        for part, is_marked in (
            (text[:start], False),
            (text[start:stop], differs),
            (text[stop:], False),
        )
        if part or is_marked
    ]


def _count_common_prefix(left: str, right: str) -> int:
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
