"""Complete bodies of every operation that takes one, and malformed values to put into them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PERSON = {
    "id": "{recipient}", "type": "individual", "name": "Ada", "firstName": "Ada", "lastName": "King",
    "email": "ada@example.com", "referenceId": "r", "ssn": "900000001", "passport": "P1",
    "dob": "1990-12-10", "language": "en", "currency": "USD", "primaryCurrency": "USD", "status": "active",
    "address": {"street1": "1 Main Street", "street2": "", "city": "New York", "region": "NY",
                "postalCode": "10001", "country": "US", "phone": "+15550147963"},
}  # fmt: skip
BANK = {
    "country": "US", "currency": "USD", "name": "Ada", "branchNum": "12345", "institution": "123",
    "branch": "b", "accountNum": "1234567", "routing": "021000021", "iban": "DE89370400440532013000",
    "swiftBic": "DEUTDEFF", "bankAddress": "a", "bankCity": "c", "bankProvince": "p", "bankRegion": "r",
    "bankPostalCode": "1", "governmentId": "900000001",
}  # fmt: skip
PAYOUT = {
    "primary": {"method": "bank", "currency": {"code": "USD", "currency": {"code": "USD"}}},
    "accounts": {"bank": BANK, "wallet": {"address": "ada@example.com"}},
    "autoswitch": {"limit": 1, "active": False},
    "holdup": {"limit": 5, "active": True},
}
PAYMENT = {
    "recipient": {"id": "{recipient}"},
    "sourceAmount": "1.00",
    "sourceCurrency": "USD",
    "memo": "m",
}
OTHER_PAYMENT = {
    "recipient": {"email": "ada@example.com"},
    "targetAmount": 2,
    "targetCurrency": "EUR",
}
BATCH = {"sourceCurrency": "USD", "description": "d", "payments": [PAYMENT, OTHER_PAYMENT]}
CHANGE = {
    "payments": [PAYMENT],
    "update_payments": [{"id": "{payment}", "sourceAmount": "3.00", "memo": "x"}],
    "remove_payments": [{"id": "{other}"}],
}
OPERATIONS: list[tuple[str, str, Any]] = [
    ("POST", "/recipients", {**PERSON, "payout": PAYOUT}),
    ("PATCH", "/recipients/{recipient}", {**PERSON, "payout": PAYOUT}),
    ("DELETE", "/recipients", {"ids": ["R-1", "R-2"]}),
    ("POST", "/recipients/{recipient}/payout-methods", PAYOUT),
    ("PATCH", "/recipients/{recipient}/payout-methods", PAYOUT),
    ("POST", "/batches", BATCH),
    ("PATCH", "/batches/{batch}", CHANGE),
    ("DELETE", "/batches", {"ids": ["B-1", "B-2"]}),
    ("POST", "/batches/{batch}/payments", PAYMENT),
    ("POST", "/batches/{batch}/payments", OTHER_PAYMENT),
    ("PATCH", "/batches/{batch}/payments/{payment}", {"sourceAmount": "4.00", "memo": "x"}),
]


@dataclass(frozen=True)
class RawNumber:
    """A number literal, sent as it is written."""

    text: str


MALFORMED_VALUES: list[Any] = [
    None, "", " ", "\0", "a\0b", "\U0001f4a9", "\u202e", "\x01", "\x7f", "a" * 10_000, "\u0130" * 3000, "-1", "0",
    "1e5", "NaN", "****", "**12", "true", "False", "[]", "{}", "' OR 1=1 --", "../../batches", "%00", "R-",
    "R-\0", "R-" + "1" * 65, "R-" + "1" * 20_000, "B-1", "P-1", "A-1", "R-\uff11", "\n", "a@b", "@", "a@b\0",
    f"{'a' * 30_000}@example.com", "\u00df", "US", "usa", "ZZ", "USD", "usd", "bank", "wallet",
    "2024-02-30", "0000-00-00", "9999-12-31T", "DE89370400440532013001", "GB29NWBK60161331926819",
    0, 1, -1, 10**30, 10**400, True, False, [], {}, [[]], [None], [{}], {"a": 1}, {"code": "USD"}, {"code": None},
    {"currency": {"code": "USD"}}, {"code": {"code": {"code": 1}}}, RawNumber("1.00"), RawNumber("1.5"), RawNumber("1e5"),
    "0.50", "007.10", RawNumber("0.10"), RawNumber("1E400"), RawNumber("-0"), RawNumber("0.00"), RawNumber("1e-400"), RawNumber("0.1" + "0" * 4000),
]  # fmt: skip


def iterate_paths(value: Any, parents: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield parents
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in items:
        yield from iterate_paths(inner, (*parents, name))


def replace_at(value: Any, location: tuple[Any, ...], replacement: Any) -> Any:
    """A copy with a malformed value at a path; unchanged if the path no longer exists."""
    if not location:
        return replacement
    copied = copy.deepcopy(value)
    holder = copied
    try:
        for name in location[:-1]:
            holder = holder[name]
        holder[location[-1]] = replacement
    except (LookupError, TypeError):
        return value
    return copied


def dump_json(value: Any) -> str:
    numbers = []

    def encode_raw(raw: Any) -> str:
        numbers.append(raw.text)
        return f"<number {len(numbers) - 1}>"

    text = json.dumps(value, default=encode_raw)
    return re.sub(r'"<number (\d+)>"', lambda match: numbers[int(match[1])], text)
