"""Every allowed difference between the two services, with its reason: no wildcards."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gateway.compare.answer import Answer
from gateway.compare.differences import Difference
from mappings import OPERATIONS

IsDifference = Callable[[Difference, Answer, Answer], bool]


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """``places`` are in normal form; ``when`` sees the difference, control's answer and candidate's."""

    name: str
    section: str
    because: str
    operations: frozenset[str]
    kinds: frozenset[str]
    places: frozenset[str]
    when: IsDifference = lambda _found, _own, _other: True

    def matches(self, operation: str, difference: Difference, own: Answer, other: Answer) -> bool:
        return (
            operation in self.operations
            and difference.kind in self.kinds
            and difference.normal_path in self.places
            and self.when(difference, own, other)
        )


EVERY = frozenset(one.name for one in OPERATIONS)
WRITES_OF_PAYMENTS = frozenset({"create_batch", "update_batch", "create_payment", "update_payment"})
WITH_PAYOUT = frozenset({"create_recipient", "update_recipient", "create_payout_method",
                         "update_payout_method"})  # fmt: skip
ERRORS = frozenset({"errors", "errors[]", "errors[].code", "errors[].field"})
CHANGED = frozenset({"missing", "extra", "value", "order"})


Told = tuple[str, str]
"""An error of an answer: its code and its field, in normal form."""

TOO_LITTLE = "less than the least amount"
"""What both sides say of such an amount, and of no other; it stands for the code ``invalid_field``."""


@dataclass(frozen=True, slots=True)
class AccompanyingErrors:
    """Where both sides tell of ``field``, ``side`` may tell of the ``others`` as well."""

    field: str
    side: Literal["control", "candidate"]
    others: frozenset[Told]

    def explains(self, side: str, told: Told, both: set[str]) -> bool:
        return side == self.side and told in self.others and self.field in both


def _count_errors(answer: Answer) -> Counter[Told]:
    """A payout stands by itself, or inside a recipient."""
    errors = json.loads(answer.body).get("errors", [])
    fields = (str(error.get("field", "")).removeprefix("payout.") for error in errors)
    named = [re.sub(r"\[\d+\]", "[]", field) for field in fields]
    return Counter(zip(map(_extract_code, errors), named, strict=True))


def _extract_code(error: dict[str, str]) -> str:
    return TOO_LITTLE if TOO_LITTLE in error["message"] else error["code"]


_BESIDES: list[AccompanyingErrors] = []
"""Every row there is: several reasons may meet in one answer."""


def _build_accompanying(*rows: AccompanyingErrors) -> IsDifference:
    """Whether each error that one side alone tells stands beside one of both, as a row has it.

    One of them as one of these rows has it, and the others perhaps for another reason that is named.
    """
    _BESIDES.extend(rows)

    def when(_found: Difference, own: Answer, other: Answer) -> bool:
        one, another = _count_errors(own), _count_errors(other)
        both = {field for _code, field in one} & {field for _code, field in another}
        alone = [("control", told) for told in one - another]
        alone += [("candidate", told) for told in another - one]

        def explained(by: Iterable[AccompanyingErrors], each: tuple[str, Told]) -> bool:
            return any(row.explains(*each, both) for row in by)

        is_ours = any(explained(rows, each) for each in alone)
        return is_ours and all(explained(_BESIDES, each) for each in alone)

    return when


def _too_little(row: str) -> frozenset[Told]:
    return frozenset((TOO_LITTLE, f"{row}{side}Amount") for side in ("source", "target"))


_TOO_LITTLE = _too_little("payments[].") | _too_little("")
_PAYEES = frozenset({"payments[].recipient.id", "payments[].recipient.email",
                     "recipient.id", "recipient.email"})  # fmt: skip


def _cannot_be_paid(_found: Difference, own: Answer, other: Answer) -> bool:
    """Whether one side tells who is not there or gets too little, and the other who of the rest
    cannot be paid.
    """
    one, another = set(_count_errors(own)), set(_count_errors(other))
    of_one = {("invalid_field", field) for field in _PAYEES} | _TOO_LITTLE
    of_another = {("invalid_status", field) for field in _PAYEES}
    return bool(one and another) and one <= of_one and another <= of_another


def _has_as_many_errors(_found: Difference, own: Answer, other: Answer) -> bool:
    return _count_errors(own) == _count_errors(other)


BANK_FIELD = "accounts.bank"


def _build_missing(*fields: str) -> frozenset[Told]:
    return frozenset(("empty_field", field) for field in fields)


def _build_invalid(*fields: str) -> frozenset[Told]:
    return frozenset(("invalid_field", field) for field in fields)


_MASKED_OF_A_COUNTRY = _build_invalid(
    *(f"{BANK_FIELD}.{name}" for name in ("governmentId", "routing", "branchNum", "institution"))
)

PAYMENT_FIELDS = (
    "recipient", "recipient.id", "recipient.email", "sourceAmount", "sourceCurrency", "targetAmount",
    "targetCurrency", "memo",
)  # fmt: skip
RECIPIENT_FIELDS = (
    "type", "email", "name", "firstName", "lastName", "ssn", "passport", "dob", "status",
    "currency", "primaryCurrency", "address", "payout", "primary", "primary.method",
    "primary.currency", "accounts", BANK_FIELD, "accounts.wallet", "accounts.wallet.address",
    *(f"{BANK_FIELD}.{name}" for name in (
        "country", "currency", "accountNum", "iban", "swiftBic", "routing", "branchNum",
        "institution", "governmentId", "name", "bankRegion", "bankProvince",
    )),
)  # fmt: skip
CHANGED_FIELDS = tuple(
    f"{row}.{field}"
    for row in ("update_payments[]", "remove_payments[]")
    for field in ("id", "sourceAmount", "targetAmount", "targetCurrency", "memo")
)


def _is_unknown_recipient(row: str) -> frozenset[Told]:
    """Who a payment names, and cannot be paid."""
    fields = (f"{row}recipient.id", f"{row}recipient.email")
    return frozenset(
        (code, field) for code in ("invalid_field", "invalid_status") for field in fields
    )


def _left_to_the_service(of_row: Callable[[str], frozenset[Told]]) -> Iterable[AccompanyingErrors]:
    """What the service alone knows of a payment, beside whatever is wrong with the request by itself."""
    for row in ("payments[].", ""):
        for field in PAYMENT_FIELDS:
            yield AccompanyingErrors(f"{row}{field}", "control", of_row(row))
    for field in ("payments[].id", "sourceCurrency", "description", *CHANGED_FIELDS):
        yield AccompanyingErrors(field, "control", of_row("payments[]."))


LOGGED = b"logged elsewhere"
"""Stands in a log that tells of the same call on both sides."""

_LOG = frozenset(
    {f"activities[].{name}" for name in ("id", "url", "method", "request", "response", "headers", "code")}
    | {f"activities[].headers.{name}" for name in (
        "Accept", "Accept-Encoding", "Host", "Connection", "Content-Type", "Content-Length",
        "User-Agent", "X-API-Key", "X-Request-ID", "X-Request-Id", "Authorization",
        "X-SVC-Timestamp")}
    | {f"activities[].{name}" for name in ("createdAt", "statusCode", "status", "source", "message")}
    | {"activities[]", "meta.pages", "meta.records"}
)  # fmt: skip

KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = (
    KnownDifference(
        "the words of a message",
        "legacy 7",
        "the document gives codes and what they mean; a message is for people",
        EVERY,
        frozenset({"value"}),
        frozenset({"errors[].message"}),
    ),
    KnownDifference(
        "which other fields an account of no country needs",
        "legacy 4.2",
        "what is required depends on the country, which is missing",
        WITH_PAYOUT,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(
                f"{BANK_FIELD}.country", "control", _build_missing(f"{BANK_FIELD}.accountNum")
            )
        ),
    ),
    KnownDifference(
        "a mask in an account of no country",
        "current 2.6",
        "what a field may hold depends on the country, which is missing; that it is masked needs none",
        WITH_PAYOUT,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(f"{BANK_FIELD}.country", "candidate", _MASKED_OF_A_COUNTRY)
        ),
    ),
    KnownDifference(
        "what else is wrong where an object is none",
        "legacy 4.2",
        "nothing is known of what should stand inside it; the method that is missing is told at once",
        WITH_PAYOUT,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors("accounts", "candidate", _build_missing("primary.method")),
            AccompanyingErrors(BANK_FIELD, "candidate", _build_missing("primary.method")),
        ),
    ),
    KnownDifference(
        "the sort code that a wrong IBAN does not give",
        "current 2.6",
        "for GB it may stand in the IBAN alone; in one that is wrong nothing is looked up",
        WITH_PAYOUT,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(
                f"{BANK_FIELD}.iban", "candidate", _build_missing(f"{BANK_FIELD}.branchNum")
            ),
        ),
    ),
    KnownDifference(
        "the IBAN that a service wants beside a number",
        "current 2.6",
        "where a country has both, the service decides; it is asked when all else is right",
        WITH_PAYOUT,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(
                f"{BANK_FIELD}.governmentId", "control", _build_missing(f"{BANK_FIELD}.iban")
            ),
        ),
    ),
    KnownDifference(
        "what is wrong with a government id that cannot be replaced",
        "current 2.4",
        "that others would be lost is enough; what else is wrong with it is told by one side",
        WITH_PAYOUT,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(
                f"{BANK_FIELD}.governmentId",
                "control",
                _build_missing(f"{BANK_FIELD}.governmentId"),
            ),
            AccompanyingErrors(
                f"{BANK_FIELD}.governmentId",
                "candidate",
                _build_invalid(f"{BANK_FIELD}.governmentId"),
            ),
        ),
    ),
    KnownDifference(
        "a language of none, beside what is wrong by itself",
        "current 4.1",
        "whether it may be null the service decides; it is not asked where a body is wrong by itself",
        frozenset({"update_recipient"}),
        CHANGED,
        ERRORS,
        _build_accompanying(
            *(
                AccompanyingErrors(field, "control", _build_invalid("language"))
                for field in RECIPIENT_FIELDS
            )
        ),
    ),
    KnownDifference(
        "the currency of an amount that is one too many",
        "legacy 4.3",
        "one of sourceAmount or targetAmount is needed; both of them are told of by both sides",
        WRITES_OF_PAYMENTS,
        CHANGED,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(
                "payments[].targetAmount", "candidate", _build_missing("payments[].targetCurrency")
            ),
            AccompanyingErrors("targetAmount", "candidate", _build_missing("targetCurrency")),
        ),
    ),
    KnownDifference(
        "what else is wrong with a payment that is not there",
        "legacy 4.3",
        "that it is none of the batch's is told by both sides; of its amount only one looks further",
        frozenset({"update_batch"}),
        CHANGED,
        ERRORS,
        _build_accompanying(
            *(
                AccompanyingErrors(
                    f"{row}.id",
                    "candidate",
                    _build_invalid(f"{row}.sourceAmount", f"{row}.targetAmount")
                    | _build_missing(f"{row}.targetCurrency"),
                )
                for row in ("update_payments[]", "payments[]")
            )
        ),
    ),
    KnownDifference(
        "who is not there, beside what is wrong by itself",
        "current 4.3",
        "who can be paid the service alone knows; it is not asked where a body is wrong by itself",
        WRITES_OF_PAYMENTS,
        CHANGED,
        ERRORS,
        _build_accompanying(*_left_to_the_service(_is_unknown_recipient)),
    ),
    KnownDifference(
        "the least amount, beside what is wrong by itself",
        "current 2.3",
        "the service alone knows it; it is not asked where a body is wrong by itself",
        WRITES_OF_PAYMENTS,
        CHANGED,
        ERRORS,
        _build_accompanying(*_left_to_the_service(_too_little)),
    ),
    KnownDifference(
        "who is not there or gets too little, beside who is known here and cannot be paid",
        "current 4.3",
        "both the service alone knows; it is not asked to pay whom it is known not to pay",
        WRITES_OF_PAYMENTS,
        CHANGED,
        ERRORS,
        _cannot_be_paid,
    ),
    KnownDifference(
        "the order of errors",
        "legacy 7",
        "the document gives them a list and no order",
        WRITES_OF_PAYMENTS | WITH_PAYOUT,
        frozenset({"order"}),
        frozenset({"errors"}),
        _has_as_many_errors,
    ),
    KnownDifference(
        "what a log tells of",
        "current 4.1",
        "entries pass as they are: they tell of the calls that the service has had",
        frozenset({"read_recipient_logs"}),
        CHANGED,
        _LOG,
        lambda _found, own, _other: LOGGED not in own.body,
    ),
    KnownDifference(
        "which account pays what goes to wallets",
        "legacy 2, Batch summary",
        "nothing says it; to the gateway it is the one that the summary counts them under",
        frozenset({"read_batch_summary"}),
        frozenset({"value"}),
        frozenset({"batchSummary.enoughFunds"}),
        lambda _found, own, _other: '"GatewayTotal":{"count":0' not in own.body.decode(),
    ),
)
