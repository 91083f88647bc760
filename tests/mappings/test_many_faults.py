"""Errors of a large invalid batch are reported in linear, not quadratic, time.

The process answers nobody else meanwhile; quadratic time would take minutes here.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mappings import errors, field_types, legacy
from mappings.batch_bodies import SentPayment
from mappings.batches import create_batch
from mappings.effects import Request
from mappings.failures import Invalid, Problem, Refused
from mappings.payment_bodies import map_payments_fields

MANY = 6000


def test_what_is_wrong_with_each_payment_of_a_body() -> None:
    body = {"sourceCurrency": "USD", "payments": [{"sourceAmount": "1.50"}] * MANY}
    read, problems = field_types.parse_body(legacy.BatchBody, body)
    flow = create_batch(Request(datetime.now(UTC), body=read, problems=problems))
    with pytest.raises(Invalid) as told:
        next(flow)
    found = errors.translate_failure(told.value).problems
    assert [one.field for one in found[:2]] == [
        "payments[0].recipient.id",
        "payments[1].recipient.id",
    ]
    assert len(found) == errors.MAX_ERRORS
    assert found[-1].message.endswith(f" … and {MANY - errors.MAX_ERRORS:,} more")


def test_what_the_service_says_of_each_payment_of_a_batch() -> None:
    source = {"recipient": {"id": "R-1"}, "sourceAmount": "1"}
    target = {"recipient": {"id": "R-1"}, "targetAmount": "1", "targetCurrency": "EUR"}
    payments = [source, target] * (MANY // 2)
    names = map_payments_fields(
        [SentPayment(one, f"payments[{number}].") for number, one in enumerate(payments)]
    )
    problems = [
        Problem("invalid_field", "amount is too small", f"payments[{number}].amount")
        for number in range(MANY)
    ]
    told = errors.translate_failure(Refused(400, problems, field_map=names)).problems
    assert len(told) == errors.MAX_ERRORS
    assert [(one.field, one.message) for one in told[-2:]] == [
        ("payments[98].sourceAmount", "sourceAmount is too small"),
        ("payments[99].targetAmount", f"targetAmount is too small … and {MANY - 100:,} more"),
    ]


def test_fields_are_named_whole_in_a_message_too() -> None:
    names = {"payments[0].recipient.id": "payments[0].recipient.email", "branchId": "bank.routing"}
    told = errors.translate_failure(
        Refused(
            400,
            [
                Problem("invalid_field", "payments[0].recipient.id: unknown.", None),
                Problem("invalid_field", "account.branchId: 9 digits", "branchId"),
            ],
            field_map=names,
        )
    ).problems
    assert [one.message for one in told] == [
        "payments[0].recipient.email: unknown.",
        "account.routing: 9 digits",
    ]
