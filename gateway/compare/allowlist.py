"""Allow-list of the values that recordings keep unmasked: needed for a replay, never personal data.

A name or value is kept because it is known, not because it looks harmless: fields of the two
documents, words that they list, amounts in amount fields, codes with valid check digits. Ids are kept
because a replay finds objects by them. An id of digits alone is not one of a recipient or batch
(legacy interface, section 2): it may be a number that somebody typed after ``R-``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from typing_extensions import is_typeddict

from gateway.compare.operations import OBJECT_ID
from gateway.compare.pii import LABEL_WORDS
from mappings import current, legacy

# From the declared shapes, so that a field that is added to one is kept here too.
_TYPED_DICTS = [
    value for module in (legacy, current) for value in vars(module).values() if is_typeddict(value)
]

DOCUMENTED_FIELDS = frozenset(
    {name for typed_dict in _TYPED_DICTS for name in typed_dict.__annotations__}
    | {"ok", "errors", "code", "message", "field", "balances", "dealId"}
    | {"ip", "method", "headers", "source", "testMode", "name", "regions"}
)
"""Fields and parameters of the documents, and those that clients in the field send."""

_DOCUMENT_WORDS_TEXT = """
individual business
active incomplete inactive disabled suspended archived
pending verified blocked review
open processing accepted complete processed failed returned
bank wallet service bank-transfer mobile-money cash debit-card check mobile-wallet
created updated deleted completed API api
status country city name email id complianceStatus createdAt updatedAt type referenceId
payoutMethod asc desc
eft ach fps sepa wire transfer
invalid_token invalid_api_key not_authorized not_found invalid_status invalid_field empty_field
expired_quote rate_limit_exceeded internal_server_error partner_integration_error
"""

_DOCUMENT_WORDS = frozenset(_DOCUMENT_WORDS_TEXT.split())
"""Statuses, methods, codes and sort orders (legacy and current interface, sections 2 to 4 and 7)."""

_ENUM_FIELDS = {
    "status", "complianceStatus", "type", "method", "payoutMethod", "object", "code", "orderBy",
    "sortBy", "accountType", "processed_by", "source", "routeType",
}  # fmt: skip
_CODE_FIELDS = {
    "currency", "sourceCurrency", "targetCurrency", "primaryCurrency", "payoutCurrency", "code",
    "country", "countryCode",
}  # fmt: skip
_AMOUNT_FIELDS = {
    "amount", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees", "recipientFees",
    "merchantFees", "value", "net", "routeMinimum", "estimatedFees", "GatewayTotal", "ServiceTotal",
}  # fmt: skip
_COUNT_FIELDS = {"count", "limit", "page", "pages", "pageSize", "records", "totalPayments"}
_DATETIME_FIELDS = {
    "createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "checkedAt", "serverTime",
    "quoteExpiredAt", "startDate", "endDate",
}  # fmt: skip
_LABEL_FIELDS = {"methodDisplay", "displayName", "sourceCurrencyName", "targetCurrencyName"}
_REGION_FIELDS = {"region", "bankProvince", "bankRegion", "bankRegionCode"}

_AMOUNT = re.compile(r"[+-]?\d{1,15}(\.\d{1,10})?")
_COUNT = re.compile(r"[+-]?\d{1,6}")
_CODE = re.compile(r"[A-Z]{2,3}")
_DATETIME = re.compile(r"20[1-9]\d-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?")
"""Years before 2010 do not match: the service did not exist, and such a date may be a birth date."""
_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2})?")
_REGION = re.compile(r"[A-Z0-9]{1,3}|[A-Z]{2}-[A-Z0-9]{1,3}")
_BIC = re.compile(r"[A-Z]{4}[A-Z]{2}[A-Z0-9]{2}([A-Z0-9]{3})?")
_BRANCH_NUMBER = re.compile(r"\d{3,6}|[A-Z]{4}0[A-Z0-9]{6}")
"""Branch numbers of CA, AU, NZ and GB, or of IN (current interface, section 2.6)."""
_ALREADY_MASKED = re.compile(r"\*{2,}[A-Za-z0-9]{0,4}")
_NUMERIC_ID = re.compile(r"[RB]-\d{7,15}")


def _is_routing_number(text: str) -> bool:
    """Whether a text is a US routing number: nine digits with a valid check digit."""
    # The ABA checksum: the weighted sum of the digits is a multiple of ten.
    weights = (3, 7, 1, 3, 7, 1, 3, 7, 1)
    return bool(re.fullmatch(r"\d{9}", text, re.ASCII)) and (
        sum(weight * int(digit) for weight, digit in zip(weights, text, strict=True)) % 10 == 0
    )


def _is_known_field_path(text: str, extra_words: Collection[str]) -> bool:
    """Whether the ``field`` of an error consists of documented fields and indices."""
    parts = [part for part in re.split(r"[\[\].]", text) if part]
    return all(
        part in DOCUMENTED_FIELDS or part in extra_words or re.fullmatch(r"\d{1,6}", part)
        for part in parts
    )


def _create_fullmatch_test(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: bool(pattern.fullmatch(text))


_KEPT_VALUE_BY_FIELD: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(_ENUM_FIELDS, _DOCUMENT_WORDS.__contains__),
    **dict.fromkeys(_CODE_FIELDS, _create_fullmatch_test(_CODE)),
    **dict.fromkeys(_AMOUNT_FIELDS, _create_fullmatch_test(_AMOUNT)),
    **dict.fromkeys(_COUNT_FIELDS, _create_fullmatch_test(_COUNT)),
    **dict.fromkeys(_DATETIME_FIELDS, _create_fullmatch_test(_DATETIME)),
    **dict.fromkeys(_REGION_FIELDS, _create_fullmatch_test(_REGION)),
    **dict.fromkeys(("branchNum", "branch", "branchId"), _create_fullmatch_test(_BRANCH_NUMBER)),
    **dict.fromkeys(("institution", "bankId"), _create_fullmatch_test(re.compile(r"\d{1,4}"))),
    # A `code` is that of an error, a currency or a country.
    "code": lambda text: text in _DOCUMENT_WORDS or bool(_CODE.fullmatch(text)),
    "routing": _is_routing_number,
    "swiftBic": _create_fullmatch_test(_BIC),
    "language": _create_fullmatch_test(_LANGUAGE),
}
_PERSONAL_FIELDS_TEXT = """
name firstName lastName accountHolderName email emailAddress address street1 street2 city
postalCode phone phoneNumber passport ssn governmentId accountNum accountNumber iban dob
bankAddress bankCity bankPostalCode placeOfBirth memo description
"""

_PERSONAL_FIELDS = frozenset(_PERSONAL_FIELDS_TEXT.split())
"""In these fields a text that looks like an id is not trusted to be one."""


def is_text_kept_in_recording(
    fields: tuple[str, ...], text: str, extra_words: Collection[str] = ()
) -> bool:
    """Whether a text is kept. ``fields`` are the keys of its path; ``extra_words`` are kept too."""
    field = _select_field_name(fields)
    if not text or _ALREADY_MASKED.fullmatch(text):
        return True
    if OBJECT_ID.fullmatch(text):
        return field not in _PERSONAL_FIELDS and is_id_kept_in_recording(text)
    if field in _LABEL_FIELDS or (field == "name" and "currency" in fields[:-1]):
        return text in extra_words or all(word in LABEL_WORDS for word in re.findall(r"\w+", text))
    if field == "field":
        return _is_known_field_path(text, extra_words)
    if field in _ENUM_FIELDS and text in extra_words:
        return True
    matches = _KEPT_VALUE_BY_FIELD.get(field)
    return matches is not None and matches(text)


def _select_field_name(fields: tuple[str, ...]) -> str:
    """Returns the field of a value; ``amount`` for balances of a summary, keyed by currency."""
    return "amount" if fields[-2:-1] == ("merchantBalances",) else "".join(fields[-1:])


def is_number_kept_in_recording(fields: tuple[str, ...], text: str) -> bool:
    """Whether a JSON number is kept. It may be an account number."""
    field = _select_field_name(fields)
    if field in _AMOUNT_FIELDS | _COUNT_FIELDS or field == "code":
        return is_text_kept_in_recording((field,), text) or (field == "code" and len(text) <= 3)
    # Few enough digits for a flag or a count, too few for an account or a phone number.
    return len(text) <= 3 and field not in _PERSONAL_FIELDS


def is_id_kept_in_recording(text: str) -> bool:
    return bool(OBJECT_ID.fullmatch(text)) and not _NUMERIC_ID.fullmatch(text)


def is_key_kept_in_recording(key: str, extra_words: Collection[str] = ()) -> bool:
    """Whether an object key is a field, a method or a currency code, and not personal data."""
    return (
        key in DOCUMENTED_FIELDS
        or key in _DOCUMENT_WORDS
        or key in extra_words
        or bool(re.fullmatch(r"[A-Z]{3}", key))
    )
