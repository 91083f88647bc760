"""Decides which values reports show, and replaces all others by type and length.

A value is shown because its field is listed and it has the format of that field; everything else is
masked: letters and digits become ``*``. The field name alone is not enough: an email in ``status`` is
masked too.
"""

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from gateway.compare import paths
from gateway.compare.paths import Path
from gateway.compare.requests import OBJECT_ID, is_path_word
from gateway.compare.strict_json import ABSENT, Number, describe_json_type

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


def is_public_text(fields: tuple[str, ...], text: str) -> bool:
    """Whether a text is shown. ``fields`` are the keys of its path, without indices."""
    field = _select_field_name(fields)
    if not text or re.fullmatch(r"\*{2,}[A-Za-z0-9]{0,4}", text):
        return True
    if OBJECT_ID.fullmatch(text):
        return field not in _PERSONAL_FIELDS and _is_public_id(text)
    if field == "field":
        parts = [part for part in re.split(r"[\[\].]", text) if part]
        return all(_is_public_key(part) or re.fullmatch(r"\d{1,6}", part) for part in parts)
    # Any word, because a reader needs to see a status that no document has.
    if field in _ENUM_FIELDS and _ENUM_WORD.fullmatch(text):
        return True
    if field == "routing":
        return _is_routing_number(text)
    if field == "name" and fields[0] == "country":
        # Only answers about countries have such an object.
        return bool(_GEOGRAPHIC_NAME.fullmatch(text))
    value_format = _FORMAT_BY_FIELD.get(field)
    return value_format is not None and bool(value_format.fullmatch(text))


def _is_public_number(fields: tuple[str, ...], text: str) -> bool:
    """Whether a JSON number is shown. It may be an account number."""
    field = _select_field_name(fields)
    if field in (*_AMOUNT_FIELDS, *_COUNT_FIELDS):
        return is_public_text((field,), text)
    # Few enough digits for a flag or a count, too few for an account or a phone number.
    return len(text) <= 3 and field not in _PERSONAL_FIELDS


def _is_public_key(key: str) -> bool:
    """Whether an object key is a field, a method or a currency code, and not personal data."""
    patterns = (_FIELD_NAME, _TOTAL_FIELD)
    return _is_public_id(key) or any(pattern.fullmatch(key) for pattern in patterns)


def _is_public_id(text: str) -> bool:
    """Whether a text is an id; it is none of digits alone, which somebody may have typed."""
    return bool(OBJECT_ID.fullmatch(text)) and not re.fullmatch(r"[RB]-\d{7,15}", text)


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


def mask_text(text: str) -> str:
    # All characters except white space and ASCII punctuation.
    return re.sub(r"[^\s!-/:-@\[-`{-~]", "*", text)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks values and paths. ``api_keys`` are removed from every text."""

    api_keys: tuple[str, ...] = ()
    is_unmasked: bool = False

    def redact_value(self, path: Path, value: Any) -> dict[str, str]:
        """Returns the JSON type of a value (or ``nothing``), and the text that is shown."""
        return {"type": describe_json_type(value), "text": self._format_value(path, value)}

    def redact_path(self, path: Path) -> str:
        return paths.format_path(tuple(map(self._redact_part, path)))

    def redact_normal_path(self, path: Path) -> str:
        return paths.normalize_path(tuple(map(self._redact_part, path)))

    def _redact_part(self, part: str | int) -> str | int:
        return part if isinstance(part, int | paths.PseudoKey) else self.redact_object_key(part)

    def redact_object_key(self, key: str) -> str:
        return self._show(key, is_public=_is_public_key(key))

    def redact_target(self, target: str) -> str:
        path, separator, query = target.partition("?")
        parts = [
            part
            if _PLACEHOLDER.fullmatch(part)
            else self._show(part, is_public=_is_public_id(part) or is_path_word(part), mask="…")
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
        parts = _PLACEHOLDER.split(value)
        # Every second part is a placeholder.
        parts[::2] = [self._redact_text((name,), unquote(p.replace("+", " "))) for p in parts[::2]]
        return f"{self.redact_object_key(name)}={''.join(parts)}"

    def _show(self, text: str, *, is_public: bool, mask: str = "") -> str:
        # API keys are never shown, in their percent-encoded form neither.
        if any(self.remove_api_keys(form) != form for form in (text, unquote(text))):
            return mask or API_KEY_PLACEHOLDER
        return text if is_public or self.is_unmasked else mask or mask_text(text)

    def _format_value(self, path: Path, value: Any) -> str:
        fields = tuple(part for part in path if isinstance(part, str) and part != "@header")
        if isinstance(value, str):
            return self._redact_text(fields, value)
        if isinstance(value, Number):
            return self._show(value.text, is_public=_is_public_number(fields, value.text))
        if isinstance(value, dict):
            # By its id, a reader finds the object that one side lacks.
            id_ = f", id {self._format_value((*path, 'id'), value['id'])}" if "id" in value else ""
            return f"{{…}} {len(value)} field{'' if len(value) == 1 else 's'}{id_}"
        if isinstance(value, list):
            return f"[…] {len(value)} item{'' if len(value) == 1 else 's'}"
        if value is ABSENT:
            return "nothing"
        return json.dumps(value)

    def _redact_text(self, fields: tuple[str, ...], text: str) -> str:
        # JSON may hold lone surrogates, which no output encoding accepts.
        text = text.encode("utf-8", "backslashreplace").decode()
        display_text = self._show(text, is_public=is_public_text(fields, text))
        is_long = len(display_text) > MAX_VALUE_CHARS
        return f"{display_text[:MAX_VALUE_CHARS]}…" if is_long else display_text
