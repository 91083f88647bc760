"""Classifies values of the legacy interface as clear or as a kind of personal data.

Values that a comparison is about are clear: amounts, statuses, codes, currencies, times, ids.
Everything else counts as personal data, unknown fields included. The field name alone is not
enough: the value must also have the format of the field, so an email in ``status`` stays hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from gateway.compare.operations import OBJECT_ID

PiiClass = Literal["clear", "email", "iban", "number", "message", "label", "text"]

_AMOUNT = re.compile(r"[+-]?\d{1,15}\.\d{1,10}")
_INTEGER = re.compile(r"[+-]?\d{1,15}")
_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ENUM_WORD = re.compile(r"[a-z]{1,16}([_-][a-z]{1,16}){0,5}|API")
_FIELD_PATH = re.compile(r"[A-Za-z]{1,24}\d?(\[\d{0,6}\])?(\.[A-Za-z]{1,24}\d?(\[\d{0,6}\])?){0,6}")
_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2})?")
_LETTER_CODE = re.compile(r"[A-Z]{2,3}")
_ALREADY_MASKED = re.compile(r"\*{2,}[A-Za-z0-9]{0,4}")
_GEOGRAPHIC_NAME = re.compile(r"[^\W\d_][^\d_@*]{0,60}")
"""A name in the object ``country``, which only answers about countries have."""
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_IBAN = re.compile(r"[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}")
_DIGIT_GROUPS = re.compile(r"(?=(?:\D*\d){4})[\d\s()+./-]+")

_NUMERIC_FIELDS = {
    "amount", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees", "recipientFees",
    "merchantFees", "value", "net", "count", "limit", "page", "pages", "pageSize", "records",
    "totalPayments", "routeMinimum", "estimatedFees", "GatewayTotal", "ServiceTotal",
}  # fmt: skip
_ENUM_FIELDS = {
    "status", "complianceStatus", "type", "method", "payoutMethod", "object", "code", "orderBy",
    "sortBy", "accountType", "processed_by", "source", "routeType",
}  # fmt: skip
_CURRENCY_FIELDS = {"currency", "sourceCurrency", "targetCurrency", "primaryCurrency", "code"}
_COUNTRY_FIELDS = {"country", "countryCode", "payoutCurrency"}
_LABEL_FIELDS = {"methodDisplay", "displayName", "sourceCurrencyName", "targetCurrencyName"}
_DATE_FIELDS = {"startDate", "endDate"}
_NUMERIC_HEADERS = {"retry-after", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
_TEXT_HEADERS = {"content-type", "access-control-allow-origin"}
_HEADER_VALUE = re.compile(r"[a-z]{1,20}/[a-z.+-]{1,40}(; ?charset=[A-Za-z0-9-]{1,20})?|\*")

_CLEAR_VALUE_BY_FIELD: dict[str, Callable[[str], re.Match[str] | None]] = {
    **dict.fromkeys(_NUMERIC_FIELDS | _NUMERIC_HEADERS, _INTEGER.fullmatch),
    **dict.fromkeys(_ENUM_FIELDS, _ENUM_WORD.fullmatch),
    **dict.fromkeys(_CURRENCY_FIELDS, _LETTER_CODE.fullmatch),
    **dict.fromkeys(_COUNTRY_FIELDS, _LETTER_CODE.fullmatch),
    **dict.fromkeys(_DATE_FIELDS, _DATE.fullmatch),
    **dict.fromkeys(_TEXT_HEADERS, _HEADER_VALUE.fullmatch),
    "code": re.compile(f"{_ENUM_WORD.pattern}|[A-Z]{{2,3}}").fullmatch,
    "field": _FIELD_PATH.fullmatch,
    "language": _LANGUAGE.fullmatch,
}
_BIRTH_FIELD = re.compile(r"dob|birth", re.IGNORECASE)


def classify_text(fields: tuple[str, ...], text: str) -> PiiClass:
    """Classifies a text. ``fields`` are the keys of its path, without indices, its own key last."""
    field = fields[-1] if fields else ""
    if fields[:1] == ("country",) and len(fields) > 1 and _GEOGRAPHIC_NAME.fullmatch(text):
        return "clear"
    if _is_clear_text(field, text):
        return "clear"
    if _EMAIL.fullmatch(text):
        return "email"
    # Some ordinary texts fit the pattern too, but have fewer digits.
    if _IBAN.fullmatch(text) and sum(map(str.isdigit, text)) >= 4:
        return "iban"
    # A masked number shows its last two digits, which would be the day of a birth date.
    if _DIGIT_GROUPS.fullmatch(text) and not (_DATE.fullmatch(text) or _BIRTH_FIELD.search(field)):
        return "number"
    if field in _LABEL_FIELDS or (field == "name" and "currency" in fields[:-1]):
        return "label"
    return "message" if field == "message" else "text"


def _is_clear_text(field: str, text: str) -> bool:
    if (
        not text
        or OBJECT_ID.fullmatch(text)
        or _ALREADY_MASKED.fullmatch(text)
        or _AMOUNT.fullmatch(text)
    ):
        return True
    if _DATETIME.fullmatch(text):
        # A date of birth is personal data, even with a time.
        return not _BIRTH_FIELD.search(field)
    matches = _CLEAR_VALUE_BY_FIELD.get(field)
    return matches is not None and matches(text) is not None


def is_non_personal_number(fields: tuple[str, ...], text: str) -> bool:
    """Whether a JSON number may be shown. It may be an account number."""
    field = fields[-1] if fields else ""
    return (
        len(text) <= 3
        or field in _NUMERIC_FIELDS
        or field == "code"
        or bool(_AMOUNT.fullmatch(text))
    )


def is_non_personal_key(key: str) -> bool:
    """Whether an object key is a field name, a code or an id, and not personal data."""
    return bool(_CLEAR_KEY.fullmatch(key) or OBJECT_ID.fullmatch(key)) or key in _NUMERIC_FIELDS


_CLEAR_KEY = re.compile(r"[a-z_][A-Za-z_-]{0,63}\d{0,2}|[A-Z0-9]{1,3}")

_MESSAGE_WORDS = """
a account accounts action active address again age all allow allowed already also am an and
another any API are argument as at balance bank batch batches be been before below blocked body
both but by can cannot characters check code column could country create created currency date day
decimal decimals deleted digit digits does dollar duplicate email empty enough error euro exactly
exist exists expected expired failed field fields first for found from funds has have IBAN id in
inactive incomplete individual insufficient internal invalid is it its json key known later least
less letter letters limit line list long longer lower many match maximum method minimum missing
more most must need needed needs negative no none not nothing null number numbers object of old on
one only open or other outcome page paid parameter pay payment payments payout pending permitted
please positive pound primary processed processing processor quote rate read recipient recipients
refused removed request require required requires response retry s same send sent server service
several short shorter should something source start started status string such supported suspended
target text than that the their there this time to token too transfer try twice two type
unexpected unknown unsupported update updated upper URL used valid value values wallet was went
were when which with within without wrong yen you your zero
"""

MESSAGE_WORDS = frozenset(_MESSAGE_WORDS.split())
"""Words of error messages that are not names of persons."""

_LABEL_WORDS = """
African Australian Bank Brazilian British Canadian Card Check Chinese Danish Dollar Euro Franc
Indian Japanese Krona Krone Mexican New Norwegian Peso Pound Rand Real Rupee South States Sterling
Swedish Swiss Transfer United US Wallet Wire Yen Yuan Zealand
"""

LABEL_WORDS = frozenset(_LABEL_WORDS.split())
"""Words in the display names of payout methods and currencies."""
