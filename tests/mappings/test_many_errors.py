"""Errors of a large invalid batch are reported in linear, not quadratic, time.

The process answers nobody else meanwhile; quadratic time would take minutes here.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mappings import errors, legacy, request_bodies
from mappings.batch_bodies import SentPayment, map_payment_field_names_to_client
from mappings.batches import create_batch
from mappings.effects import Request
from mappings.failures import Invalid, Problem, Refused

PAYMENT_COUNT = 6000


def test_problems_of_many_payments_take_linear_time() -> None:
    body = {"sourceCurrency": "USD", "payments": [{"sourceAmount": "1.50"}] * PAYMENT_COUNT}
    parsed_body, problems = request_bodies.parse_body(legacy.BatchBody, body)
    flow = create_batch(Request(datetime.now(UTC), body=parsed_body, problems=problems))
    with pytest.raises(Invalid) as error:
        next(flow)
    translated_problems = errors.translate_failure(error.value).problems
    assert [problem.field for problem in translated_problems[:2]] == [
        "payments[0].recipient.id",
        "payments[1].recipient.id",
    ]
    assert len(translated_problems) == errors.MAX_ERRORS
    assert translated_problems[-1].message.endswith(
        f" … and {PAYMENT_COUNT - errors.MAX_ERRORS:,} more"
    )


def test_service_errors_of_many_payments_take_linear_time() -> None:
    source = {"recipient": {"id": "R-1"}, "sourceAmount": "1"}
    target = {"recipient": {"id": "R-1"}, "targetAmount": "1", "targetCurrency": "EUR"}
    payments = [source, target] * (PAYMENT_COUNT // 2)
    names: dict[str, str] = {}
    for number, entry in enumerate(payments):
        prefix = f"payments[{number}]."
        names |= map_payment_field_names_to_client(SentPayment(entry, prefix), prefix)
    problems = [
        Problem("invalid_field", "amount is too small", f"payments[{number}].amount")
        for number in range(PAYMENT_COUNT)
    ]
    translated_problems = errors.translate_failure(Refused(400, problems, field_map=names)).problems
    assert len(translated_problems) == errors.MAX_ERRORS
    assert [(entry.field, entry.message) for entry in translated_problems[-2:]] == [
        ("payments[98].sourceAmount", "sourceAmount is too small"),
        (
            "payments[99].targetAmount",
            f"targetAmount is too small … and {PAYMENT_COUNT - 100:,} more",
        ),
    ]


def test_full_field_names_are_replaced_in_messages() -> None:
    names = {"payments[0].recipient.id": "payments[0].recipient.email", "branchId": "bank.routing"}
    translated_problems = errors.translate_failure(
        Refused(
            400,
            [
                Problem("invalid_field", "payments[0].recipient.id: unknown.", None),
                Problem("invalid_field", "account.branchId: 9 digits", "branchId"),
            ],
            field_map=names,
        )
    ).problems
    assert [outcome.message for outcome in translated_problems] == [
        "payments[0].recipient.email: unknown.",
        "account.routing: 9 digits",
    ]
