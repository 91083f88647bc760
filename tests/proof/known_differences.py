"""Every allowed difference between the two services, with its reason: no wildcards."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gateway.compare.differences import Difference
from gateway.compare.endpoints import Answer
from mappings import OPERATIONS

IsDifference = Callable[[Difference, Answer, Answer], bool]


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """``places`` are in normal form; ``condition`` gets the difference, control's response and candidate's."""

    name: str
    section: str
    reason: str
    operations: frozenset[str]
    kinds: frozenset[str]
    places: frozenset[str]
    condition: IsDifference = lambda _difference, _control, _candidate: True

    def matches(
        self, operation: str, difference: Difference, control: Answer, candidate: Answer
    ) -> bool:
        return (
            operation in self.operations
            and difference.kind in self.kinds
            and difference.normal_path in self.places
            and self.condition(difference, control, candidate)
        )


UNLISTED_OPERATIONS = frozenset({"read_any_payment", "list_payments"})
"""Those that the legacy document does not list."""

ALL_OPERATIONS = UNLISTED_OPERATIONS | {operation.name for operation in OPERATIONS}
WRITES_OF_PAYMENTS = frozenset({"create_batch", "update_batch", "create_payment", "update_payment"})
WITH_PAYOUT = frozenset({"create_recipient", "update_recipient", "create_payout_method",
                         "update_payout_method"})  # fmt: skip
ERRORS = frozenset({"errors", "errors[]", "errors[].code", "errors[].field"})
CHANGE_KINDS = frozenset({"missing", "extra", "value", "order"})


ErrorKey = tuple[str, str]
"""An error in a response: its code and its field, in normal form."""

TOO_LITTLE = "less than the least amount"
"""The message of both sides for such an amount only; it replaces the code ``invalid_field``."""


@dataclass(frozen=True, slots=True)
class AccompanyingErrors:
    """If both sides report an error of ``field``, ``side`` may report the ``other_errors`` as well."""

    field: str
    side: Literal["control", "candidate"]
    other_errors: frozenset[ErrorKey]

    def explains(self, side: str, error_key: ErrorKey, both: set[str]) -> bool:
        return side == self.side and error_key in self.other_errors and self.field in both


def _count_errors(answer: Answer) -> Counter[ErrorKey]:
    """Counts errors; a payout's fields have the same names inside a recipient."""
    errors = json.loads(answer.body).get("errors", [])
    fields = (str(error.get("field", "")).removeprefix("payout.") for error in errors)
    normal_fields = [re.sub(r"\[\d+\]", "[]", field) for field in fields]
    return Counter(zip(map(_extract_code, errors), normal_fields, strict=True))


def _extract_code(error: dict[str, str]) -> str:
    return TOO_LITTLE if TOO_LITTLE in error["message"] else error["code"]


_ALL_ROWS: list[AccompanyingErrors] = []
"""All rows, because several reasons may occur in one response."""


def _build_accompanying(*rows: AccompanyingErrors) -> IsDifference:
    """Builds the condition that a row explains each error that only one side reports.

    At least one error is explained by ``rows``, and the others by these or by rows of other differences.
    """
    _ALL_ROWS.extend(rows)

    def is_accompanied(_difference: Difference, control: Answer, candidate: Answer) -> bool:
        control_errors, candidate_errors = _count_errors(control), _count_errors(candidate)
        both = {field for _code, field in control_errors} & {
            field for _code, field in candidate_errors
        }
        one_sided = [("control", error_key) for error_key in control_errors - candidate_errors]
        one_sided += [("candidate", error_key) for error_key in candidate_errors - control_errors]

        def is_explained(rows: Iterable[AccompanyingErrors], error: tuple[str, ErrorKey]) -> bool:
            return any(row.explains(*error, both) for row in rows)

        is_ours = any(is_explained(rows, error) for error in one_sided)
        return is_ours and all(is_explained(_ALL_ROWS, error) for error in one_sided)

    return is_accompanied


def _build_too_little(row: str) -> frozenset[ErrorKey]:
    return frozenset((TOO_LITTLE, f"{row}{side}Amount") for side in ("source", "target"))


_TOO_LITTLE = _build_too_little("payments[].") | _build_too_little("")
_PAYEE_FIELDS = frozenset({"payments[].recipient.id", "payments[].recipient.email",
                     "recipient.id", "recipient.email"})  # fmt: skip


def _cannot_be_paid(_difference: Difference, control: Answer, candidate: Answer) -> bool:
    """Whether one side reports unknown payees or too small amounts, and the other payees that cannot be paid."""
    control_errors, candidate_errors = set(_count_errors(control)), set(_count_errors(candidate))
    unknown_payees = {("invalid_field", field) for field in _PAYEE_FIELDS} | _TOO_LITTLE
    unpayable_payees = {("invalid_status", field) for field in _PAYEE_FIELDS}
    return (
        bool(control_errors and candidate_errors)
        and control_errors <= unknown_payees
        and candidate_errors <= unpayable_payees
    )


def _has_as_many_errors(_difference: Difference, control: Answer, candidate: Answer) -> bool:
    return _count_errors(control) == _count_errors(candidate)


BANK_FIELD = "accounts.bank"


def _build_missing(*fields: str) -> frozenset[ErrorKey]:
    return frozenset(("empty_field", field) for field in fields)


def _build_invalid(*fields: str) -> frozenset[ErrorKey]:
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


def _is_unknown_recipient(row: str) -> frozenset[ErrorKey]:
    """The errors of a payee that is unknown or cannot be paid."""
    fields = (f"{row}recipient.id", f"{row}recipient.email")
    return frozenset(
        (code, field) for code in ("invalid_field", "invalid_status") for field in fields
    )


def _list_service_rows(
    of_row: Callable[[str], frozenset[ErrorKey]],
) -> Iterable[AccompanyingErrors]:
    """Rows for errors that only the service can detect, beside errors of the request itself."""
    for row in ("payments[].", ""):
        for field in PAYMENT_FIELDS:
            yield AccompanyingErrors(f"{row}{field}", "control", of_row(row))
    for field in ("payments[].id", "sourceCurrency", "description", *CHANGED_FIELDS):
        yield AccompanyingErrors(field, "control", of_row("payments[]."))


LOGGED_SOURCE = b"logged elsewhere"
"""The source of a log entry that describes the same call on both sides."""

_LOG_PATHS = frozenset(
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
        ALL_OPERATIONS,
        frozenset({"value"}),
        frozenset({"errors[].message"}),
    ),
    KnownDifference(
        "which other fields an account of no country needs",
        "legacy 4.2",
        "what is required depends on the country, which is missing",
        WITH_PAYOUT,
        CHANGE_KINDS,
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
        CHANGE_KINDS,
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
        CHANGE_KINDS,
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
        CHANGE_KINDS,
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
        CHANGE_KINDS,
        ERRORS,
        _build_accompanying(
            AccompanyingErrors(
                f"{BANK_FIELD}.governmentId", "control", _build_missing(f"{BANK_FIELD}.iban")
            ),
        ),
    ),
    KnownDifference(
        "a language of none, beside what is wrong by itself",
        "current 4.1",
        "whether it may be null the service decides; it is not asked where a body is wrong by itself",
        frozenset({"update_recipient"}),
        CHANGE_KINDS,
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
        CHANGE_KINDS,
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
        CHANGE_KINDS,
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
        CHANGE_KINDS,
        ERRORS,
        _build_accompanying(*_list_service_rows(_is_unknown_recipient)),
    ),
    KnownDifference(
        "the least amount, beside what is wrong by itself",
        "current 2.3",
        "the service alone knows it; it is not asked where a body is wrong by itself",
        WRITES_OF_PAYMENTS,
        CHANGE_KINDS,
        ERRORS,
        _build_accompanying(*_list_service_rows(_build_too_little)),
    ),
    KnownDifference(
        "who is not there or gets too little, beside who is known here and cannot be paid",
        "current 4.3",
        "both the service alone knows; it is not asked to pay whom it is known not to pay",
        WRITES_OF_PAYMENTS,
        CHANGE_KINDS,
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
        CHANGE_KINDS,
        _LOG_PATHS,
        lambda _difference, control, _candidate: LOGGED_SOURCE not in control.body,
    ),
    KnownDifference(
        "which account pays what goes to wallets",
        "legacy 2, Batch summary",
        "nothing says it; to the gateway it is the one that the summary counts them under",
        frozenset({"read_batch_summary"}),
        frozenset({"value"}),
        frozenset({"batchSummary.enoughFunds"}),
        lambda _difference, control, _candidate: (
            '"GatewayTotal":{"count":0' not in control.body.decode()
        ),
    ),
)
