"""What of recorded traffic stays as it is: what a replay needs, and can be nobody's data.

A name or a value stays where it is known, and not where it merely looks harmless: fields that one of
the two documents has, words that they list, amounts in fields of amounts, codes that check. Ids stay,
since objects are found by them; one of digits alone is no id of a recipient or a batch (legacy
interface, section 2), and may be a number that somebody typed behind ``R-``.
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
"""Names of fields and parameters that the documents have, and those that clients in the field send."""

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
"""Statuses, methods, codes and orders: documents' words, sections 2, 3, 4 and 7."""

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
"""None of a time before there was such a service: a day of birth is one."""
_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2})?")
_REGION = re.compile(r"[A-Z0-9]{1,3}|[A-Z]{2}-[A-Z0-9]{1,3}")
_BIC = re.compile(r"[A-Z]{4}[A-Z]{2}[A-Z0-9]{2}([A-Z0-9]{3})?")
_BRANCH = re.compile(r"\d{3,6}|[A-Z]{4}0[A-Z0-9]{6}")
"""Of Canada, Australia, New Zealand and the United Kingdom; of India (current interface, 2.6)."""
_MASKED = re.compile(r"\*{2,}[A-Za-z0-9]{0,4}")
_TYPED = re.compile(r"[RB]-\d{7,15}")


def _routing(text: str) -> bool:
    """Nine digits with the check digit of a routing number of the United States."""
    weights = (3, 7, 1, 3, 7, 1, 3, 7, 1)
    return bool(re.fullmatch(r"\d{9}", text, re.ASCII)) and (
        sum(weight * int(digit) for weight, digit in zip(weights, text, strict=True)) % 10 == 0
    )


def _place(text: str, more: Collection[str]) -> bool:
    """What ``field`` of an error names: fields of the documents, and indices."""
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
"""Where even what looks like an id is none."""


def is_text_kept(fields: tuple[str, ...], text: str, more: Collection[str] = ()) -> bool:
    """Whether a text is kept; ``fields`` are the keys on the way to it, ``more`` words of one's own."""
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
    """The name of a value's field; the balances of a summary are amounts, whatever word they are by."""
    return "amount" if fields[-2:-1] == ("merchantBalances",) else "".join(fields[-1:])


def is_number_kept(fields: tuple[str, ...], text: str) -> bool:
    """Whether a JSON number is kept: an account number can be one as well."""
    own = _own(fields)
    if own in _AMOUNTS | _COUNTS or own == "code":
        return is_text_kept((own,), text) or (own == "code" and len(text) <= 3)
    return len(text) <= 3 and own not in _PRIVATE


def is_id_kept(text: str) -> bool:
    return bool(ID.fullmatch(text)) and not _TYPED.fullmatch(text)


def is_key_kept(key: str, more: Collection[str] = ()) -> bool:
    """Whether a key is a field's name, a method or a currency's code, and not somebody's data."""
    return key in FIELDS or key in _WORDS or key in more or bool(re.fullmatch(r"[A-Z]{3}", key))
