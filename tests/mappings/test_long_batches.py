"""Batches of many payments give the same results as short ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from mappings import errors, legacy, matching, payment_recipients, request_bodies
from mappings.batch_bodies import (
    COMPARED_FIELDS,
    FieldNames,
    SentPayment,
    collect_sent_payments,
    drop_unchanged_fields,
    map_payment_field_names_to_client,
)
from mappings.batch_views import build_batch
from mappings.failures import Invalid, Problem, Refused
from mappings.lazy_sequences import SLICE_SIZE, MappedSequence, SerializedSequence, pack_fields
from mappings.matching import match_payments_with_entries

PAYMENT_COUNT = 2 * SLICE_SIZE + 30


def build_payment_bodies(count: int = PAYMENT_COUNT) -> list[dict[str, Any]]:
    return [
        {"recipient": {"id": f"R-{number}"}, "sourceAmount": f"{number + 1}.00", "memo": None}
        for number in range(count)
    ]


INVALID_ROWS: list[dict[int, Any]] = [
    {},
    {0: {"recipient": {"id": ["x"]}}, SLICE_SIZE + 1: {"sourceAmount": "1.5"}},
    {SLICE_SIZE: "no object", PAYMENT_COUNT - 1: None},
    {
        3: {"recipient": "x", "memo": 1.5},
        SLICE_SIZE - 1: {"recipient": None, "targetCurrency": "US"},
    },
    {
        number: {"sourceAmount": "-1", "recipient": {"email": "x"}}
        for number in range(PAYMENT_COUNT)
    },
    {7: {"sourceAmount": "", "memo": "", "unknown": {"a": [1]}}},
]


def parse_body(body_type: Any, body: Any) -> Any:
    try:
        return request_bodies.parse_body(body_type, body)
    except Invalid as invalid:
        return invalid.problems


@pytest.mark.parametrize("invalid_rows", INVALID_ROWS)
@pytest.mark.parametrize(
    "other_fields", [{}, {"sourceCurrency": "usd"}, {"sourceCurrency": 1, "payment": 2}]
)
def test_long_list_is_validated_like_a_short_one(
    invalid_rows: dict[int, Any], other_fields: Any
) -> None:
    rows = build_payment_bodies()
    for number, row in invalid_rows.items():
        rows[number] = row
    lazy_result = parse_body(
        legacy.BatchBody, {**other_fields, "payments": SerializedSequence(rows)}
    )
    assert lazy_result == parse_body(legacy.BatchBody, {**other_fields, "payments": rows})
    is_refused_at_once = len(invalid_rows) > errors.MAX_ERRORS
    assert is_refused_at_once or isinstance(lazy_result[0]["payments"], SerializedSequence)


def test_errors_of_long_change_lists_are_in_field_order() -> None:
    mixed_rows: list[Any] = [{"id": []}, *build_payment_bodies()]
    lists = {"remove_payments": mixed_rows, "payments": mixed_rows, "update_payments": mixed_rows}
    packed_lists = {name: SerializedSequence(rows) for name, rows in lists.items()}
    results = [
        parse_body(legacy.BatchChangeBody, change_lists) for change_lists in (packed_lists, lists)
    ]
    assert results[0][0] == results[1][0]
    assert {problem.field for problem in results[0][1]} == {
        problem.field for problem in results[1][1]
    }


def test_misplaced_long_list_is_ignored_or_refused_like_a_short_one() -> None:
    rows = build_payment_bodies()
    for body_type in (legacy.RecipientBody, legacy.PayoutBody, legacy.RecipientIdsBody):
        assert parse_body(body_type, {"payments": SerializedSequence(rows)}) == parse_body(
            body_type, {"payments": rows}
        )
    assert parse_body(legacy.BatchBody, {"sourceCurrency": SerializedSequence(rows)}) == parse_body(
        legacy.BatchBody, {"sourceCurrency": rows}
    )


def map_all_field_names(payments: Sequence[Any]) -> dict[str, str]:
    names = {"currency": "sourceCurrency"}
    for number, payment in enumerate(payments):
        names |= map_payment_field_names_to_client(payment, f"payments[{number}].")
    return names


@pytest.mark.parametrize(
    ("asked", "change", "sent_change"),
    [
        ({}, {"sourceAmount": "5.00", "memo": "June"}, {"memo": "June"}),
        ({}, {"targetAmount": "4.00", "targetCurrency": "EUR"}, {}),
        ({}, {"memo": "March", "sourceAmount": "6.00"}, {"sourceAmount": "6.00"}),
        ({"asked_side": "source", "asked_amount": "6.00"}, {"sourceAmount": "5.00"}, ...),
        ({"asked_side": "source", "asked_amount": "5.00"}, {"sourceAmount": "5.00"}, {}),
        ({"asked_currency": "USD"}, {"targetAmount": "4.00", "targetCurrency": "EUR"}, ...),
    ],
)
def test_unchanged_fields_of_a_long_batch_are_dropped_as_of_a_short_one(
    asked: dict[str, str], change: dict[str, str], sent_change: Any
) -> None:
    shown = {
        "sourceAmount": "5.00",
        "targetAmount": "4.00",
        "targetCurrency": "EUR",
        "memo": "March",
    }
    payment = {"id": "P-1", **shown, **asked}
    sent_change = change if sent_change is ... else sent_change
    for rows in ([payment], SerializedSequence([payment])):
        read_payment = pack_fields(rows, COMPARED_FIELDS)(0)
        left = drop_unchanged_fields(SentPayment(change, ""), read_payment, is_shown_late=False)
        assert left.body == sent_change


def test_field_names_of_long_batch_equal_those_of_short_one() -> None:
    payments = collect_sent_payments(build_payment_bodies())
    names = FieldNames(
        {"currency": "sourceCurrency"}, {"payments": payments}, map_payment_field_names_to_client
    )
    expected_names = map_all_field_names(payments)
    assert {name: names[name] for name in expected_names} == expected_names
    assert dict(names) == map_all_field_names(payments[:1]), "it iterates over the first ones"
    assert len(names) == len(dict(names))
    for missing_name in (
        "payments",
        "payments[x].amount",
        f"payments[{PAYMENT_COUNT}].amount",
        "payments[0].odd",
    ):
        assert missing_name not in names


def test_refusal_names_fields_of_long_batch() -> None:
    payments = collect_sent_payments(SerializedSequence(build_payment_bodies(1500)))
    names = FieldNames(
        {"currency": "sourceCurrency"}, {"payments": payments}, map_payment_field_names_to_client
    )
    problems = [
        Problem("invalid_field", "payments[1400].amount is odd", "payments[1400].amount"),
        Problem("invalid_field", "not like payments[1300].recipient.id", "payments[7].recipient"),
        Problem("invalid_status", "currency and amount"),
    ]
    reduced_names = errors.limit_field_map_to_problem_fields(names, problems)
    all_names = map_all_field_names(payments)
    assert len(reduced_names) < len(all_names) / 100
    failures = [
        errors.translate_failure(Refused(400, problems, field_map=field_map))
        for field_map in (reduced_names, all_names)
    ]
    assert failures[0] == failures[1]
    assert failures[0].problems[0].field == "payments[1400].sourceAmount"


def build_service_payments(count: int = PAYMENT_COUNT, *, ids: bool = True) -> list[dict[str, Any]]:
    """Build the payments as a service shows them."""
    return [
        {**({"id": f"P-{number}"} if ids else {}), **entry, "targetAmount": entry["sourceAmount"]}
        for number, entry in enumerate(build_payment_bodies(count))
    ]


def build_entries(*, has_ids: bool = False, count: int = PAYMENT_COUNT) -> list[dict[str, Any]]:
    return [
        {"recipient": entry["recipient"], "sourceAmount": entry["sourceAmount"]}
        | ({"id": f"P-{number}"} if has_ids else {})
        for number, entry in enumerate(build_payment_bodies(count))
    ]


@pytest.mark.parametrize("has_ids", [True, False])
def test_payments_in_entry_order_are_matched_lazily(has_ids: bool) -> None:
    pairs = match_payments_with_entries(
        SerializedSequence(build_service_payments()),
        SerializedSequence(build_entries(has_ids=has_ids)),
        "USD",
    )
    assert isinstance(pairs, MappedSequence)
    assert pairs == match_payments_with_entries(
        build_service_payments(), build_entries(has_ids=has_ids), "USD"
    )


def test_payments_of_a_batch_are_merged_with_its_entries_once() -> None:
    batch = build_batch("B-1", {}, build_entries(), {"currency": "USD"}, build_service_payments())
    assert batch.payments is batch.payments


def shuffle_rows(rows: list[Any]) -> list[Any]:
    return random.Random(1).sample(rows, len(rows))


ORDERS_OUT_OF_STEP = [
    pytest.param(shuffle_rows(build_service_payments()), build_entries(), id="another order"),
    pytest.param(shuffle_rows(build_service_payments()), build_entries(has_ids=True), id="another order, by id"),
    pytest.param(build_service_payments()[:-1], build_entries(), id="one is not shown"),
    pytest.param(build_service_payments(), build_entries()[1:], id="one more is shown"),
    pytest.param(build_service_payments(), [*build_entries()[:-1], *build_entries(has_ids=True)[-1:]], id="the last has an id"),
    pytest.param(build_service_payments(), [*build_entries(has_ids=True)[:-1], *build_entries()[-1:]], id="the last has none"),
    pytest.param([{**payment_entry, "sourceAmount": "1.00"} for payment_entry in build_service_payments()], build_entries(), id="amounts"),
    pytest.param(
        [{**payment_entry, "sourceAmount": "much"} for payment_entry in build_service_payments()],
        [{**payment_entry, "sourceAmount": "much"} for payment_entry in build_entries()],
        id="no amounts",
    ),
    pytest.param(
        build_service_payments(),
        [
            {"recipient": payment_entry["recipient"], "targetAmount": payment_entry["sourceAmount"], "targetCurrency": "EUR"}
            for payment_entry in build_entries()
        ],
        id="the other side",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("payments", "sent_entries"), ORDERS_OUT_OF_STEP)
def test_reordered_payments_match_the_same_entries_as_short_lists(
    payments: list[Any], sent_entries: list[Any]
) -> None:
    assert [
        *match_payments_with_entries(
            SerializedSequence(payments), SerializedSequence(sent_entries), "USD"
        )
    ] == match_payments_with_entries(payments, sent_entries, "USD")


def test_duplicate_payments_are_matched_in_order() -> None:
    duplicate_payments = [entry for entry in build_service_payments() for _ in range(2)]
    sent_payments = [
        {**entry, "memo": position} for entry in build_entries() for position in ("first", "second")
    ]
    pairs = match_payments_with_entries(
        SerializedSequence(duplicate_payments), SerializedSequence(sent_payments), "USD"
    )
    assert isinstance(pairs, MappedSequence)
    assert pairs == matching.match_payments_with_entries(duplicate_payments, sent_payments, "USD")


def test_many_recipients_are_loaded_in_chunks() -> None:
    ids = [f"R-{number}" for number in range(2 * payment_recipients.RECIPIENTS_PER_LOAD + 1)]
    flow = payment_recipients.load_recipient_facts(ids)
    loaded_ids = []
    step_result: Any = None
    try:
        while True:
            step = flow.send(step_result)
            loaded_ids.append(step.ids)
            step_result = {step.ids[0]: {"status": "disabled"}}
    except StopIteration as stop:
        loaded_facts = stop.value
    assert [len(statement) for statement in loaded_ids] == [
        payment_recipients.RECIPIENTS_PER_LOAD,
        payment_recipients.RECIPIENTS_PER_LOAD,
        1,
    ]
    assert [*loaded_facts] == [statement[0] for statement in loaded_ids]
