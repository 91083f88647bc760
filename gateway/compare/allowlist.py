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

from gateway.compare.operations import ID
from gateway.compare.pii import LABEL_WORDS
from mappings import current, legacy

_SHAPES = [one for room in (legacy, current) for one in vars(room).values() if is_typeddict(one)]

FIELDS = frozenset(
    {name for shape in _SHAPES for name in shape.__annotations__}
    | {"ok", "errors", "code", "message", "field", "balances", "dealId"}
    | {"ip", "method", "headers", "source", "testMode", "name", "regions"}
)
"""Fields and parameters of the documents, and those that clients in the field send."""

_OF_DOCUMENTS = """
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

_WORDS = frozenset(_OF_DOCUMENTS.split())
"""Statuses, methods, codes and sort orders of the documents, sections 2, 3, 4 and 7."""

_WORDED = {
    "status", "complianceStatus", "type", "method", "payoutMethod", "object", "code", "orderBy",
    "sortBy", "accountType", "processed_by", "source", "routeType",
}  # fmt: skip
_CODED = {
    "currency", "sourceCurrency", "targetCurrency", "primaryCurrency", "payoutCurrency", "code",
    "country", "countryCode",
}  # fmt: skip
_AMOUNTS = {
    "amount", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees", "recipientFees",
    "merchantFees", "value", "net", "routeMinimum", "estimatedFees", "GatewayTotal", "ServiceTotal",
}  # fmt: skip
_COUNTS = {"count", "limit", "page", "pages", "pageSize", "records", "totalPayments"}
_MOMENTS = {
    "createdAt", "updatedAt", "sentAt", "completedAt", "processedAt", "checkedAt", "serverTime",
    "quoteExpiredAt", "startDate", "endDate",
}  # fmt: skip
_LABELS = {"methodDisplay", "displayName", "sourceCurrencyName", "targetCurrencyName"}
_REGIONS = {"region", "bankProvince", "bankRegion", "bankRegionCode"}

_AMOUNT = re.compile(r"[+-]?\d{1,15}(\.\d{1,10})?")
_COUNT = re.compile(r"[+-]?\d{1,6}")
_CODE = re.compile(r"[A-Z]{2,3}")
_MOMENT = re.compile(r"20[1-9]\d-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?")
"""Years before 2010 do not match: the service did not exist, and such a date may be a birth date."""
_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2})?")
_REGION = re.compile(r"[A-Z0-9]{1,3}|[A-Z]{2}-[A-Z0-9]{1,3}")
_BIC = re.compile(r"[A-Z]{4}[A-Z]{2}[A-Z0-9]{2}([A-Z0-9]{3})?")
_BRANCH = re.compile(r"\d{3,6}|[A-Z]{4}0[A-Z0-9]{6}")
"""Of CA, AU, NZ and GB; of IN (current interface, section 2.6)."""
_MASKED = re.compile(r"\*{2,}[A-Za-z0-9]{0,4}")
_TYPED = re.compile(r"[RB]-\d{7,15}")


def _routing(text: str) -> bool:
    """Whether a text is a US routing number: nine digits with a valid check digit."""
    weights = (3, 7, 1, 3, 7, 1, 3, 7, 1)
    return bool(re.fullmatch(r"\d{9}", text, re.ASCII)) and (
        sum(weight * int(digit) for weight, digit in zip(weights, text, strict=True)) % 10 == 0
    )


def _place(text: str, more: Collection[str]) -> bool:
    """Whether the ``field`` of an error consists of documented fields and indices."""
    parts = [one for one in re.split(r"[\[\].]", text) if one]
    return all(one in FIELDS or one in more or re.fullmatch(r"\d{1,6}", one) for one in parts)


def _like(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: bool(pattern.fullmatch(text))


_STAYS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(_WORDED, _WORDS.__contains__),
    **dict.fromkeys(_CODED, _like(_CODE)),
    **dict.fromkeys(_AMOUNTS, _like(_AMOUNT)),
    **dict.fromkeys(_COUNTS, _like(_COUNT)),
    **dict.fromkeys(_MOMENTS, _like(_MOMENT)),
    **dict.fromkeys(_REGIONS, _like(_REGION)),
    **dict.fromkeys(("branchNum", "branch", "branchId"), _like(_BRANCH)),
    **dict.fromkeys(("institution", "bankId"), _like(re.compile(r"\d{1,4}"))),
    "code": lambda text: text in _WORDS or bool(_CODE.fullmatch(text)),
    "routing": _routing,
    "swiftBic": _like(_BIC),
    "language": _like(_LANGUAGE),
}
_OF_PERSONS = """
name firstName lastName accountHolderName email emailAddress address street1 street2 city
postalCode phone phoneNumber passport ssn governmentId accountNum accountNumber iban dob
bankAddress bankCity bankPostalCode placeOfBirth memo description
"""

_PRIVATE = frozenset(_OF_PERSONS.split())
"""In these fields a text that looks like an id is not trusted to be one."""


def is_text_kept(fields: tuple[str, ...], text: str, more: Collection[str] = ()) -> bool:
    """Whether a text is kept. ``fields`` are the keys of its path; ``extra_words`` are kept too."""
    own = _own(fields)
    if not text or _MASKED.fullmatch(text):
        return True
    if ID.fullmatch(text):
        return own not in _PRIVATE and is_id_kept(text)
    if own in _LABELS or (own == "name" and "currency" in fields[:-1]):
        return text in more or all(word in LABEL_WORDS for word in re.findall(r"\w+", text))
    if own == "field":
        return _place(text, more)
    if own in _WORDED and text in more:
        return True
    looks = _STAYS.get(own)
    return looks is not None and looks(text)


def _own(fields: tuple[str, ...]) -> str:
    """The field of a value. Balances of a summary count as ``amount``: their keys are currencies."""
    return "amount" if fields[-2:-1] == ("merchantBalances",) else "".join(fields[-1:])


def is_number_kept(fields: tuple[str, ...], text: str) -> bool:
    """Whether a JSON number is kept. It may be an account number."""
    own = _own(fields)
    if own in _AMOUNTS | _COUNTS or own == "code":
        return is_text_kept((own,), text) or (own == "code" and len(text) <= 3)
    return len(text) <= 3 and own not in _PRIVATE


def is_id_kept(text: str) -> bool:
    return bool(ID.fullmatch(text)) and not _TYPED.fullmatch(text)


def is_key_kept(key: str, more: Collection[str] = ()) -> bool:
    """Whether an object key is a field, a method or a currency code, and not personal data."""
    return key in FIELDS or key in _WORDS or key in more or bool(re.fullmatch(r"[A-Z]{3}", key))
