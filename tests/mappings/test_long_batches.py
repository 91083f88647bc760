"""Batches of many payments give the same results as short ones."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mappings import batch_bodies, errors, field_types, legacy, matching
from mappings.batch_bodies import collect_sent_payments
from mappings.failures import Invalid, Problem, Refused
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence, MappedSequence
from mappings.matching import match_payments
from mappings.payment_bodies import FieldNames, map_payment_fields, map_payments_fields

COUNT = 2 * SLICE_SIZE + 30


def bodies(count: int = COUNT) -> list[dict[str, Any]]:
    return [
        {"recipient": {"id": f"R-{number}"}, "sourceAmount": f"{number + 1}.00", "memo": None}
        for number in range(count)
    ]


WRONG: list[dict[int, Any]] = [
    {},
    {0: {"recipient": {"id": ["x"]}}, SLICE_SIZE + 1: {"sourceAmount": "1.5"}},
    {SLICE_SIZE: "no object", COUNT - 1: None},
    {3: {"recipient": "x", "memo": 1.5}, SLICE_SIZE - 1: {"recipient": None, "targetCurrency": "US"}},
    {number: {"sourceAmount": "-1", "recipient": {"email": "x"}} for number in range(COUNT)},
    {7: {"sourceAmount": "", "memo": "", "unknown": {"a": [1]}}},
]


def read(shape: Any, body: Any) -> Any:
    try:
        return field_types.parse_body(shape, body)
    except Invalid as invalid:
        return invalid.problems


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "head", [{}, {"sourceCurrency": "usd"}, {"sourceCurrency": 1, "payment": 2}]
)
def test_a_long_list_is_checked_as_if_it_were_short(wrong: dict[int, Any], head: Any) -> None:
    rows = bodies()
    for number, row in wrong.items():
        rows[number] = row
    by_slices = read(legacy.BatchBody, {**head, "payments": CompressedSequence(rows)})
    assert by_slices == read(legacy.BatchBody, {**head, "payments": rows})
    is_refused_at_once = len(wrong) > errors.MAX_ERRORS
    assert is_refused_at_once or isinstance(by_slices[0]["payments"], CompressedSequence)


def test_long_lists_of_a_change_are_told_of_in_the_order_of_its_fields() -> None:
    wrong: list[Any] = [{"id": []}, *bodies()]
    lists = {"remove_payments": wrong, "payments": wrong, "update_payments": wrong}
    packed = {name: CompressedSequence(rows) for name, rows in lists.items()}
    both = [read(legacy.BatchChangeBody, one) for one in (packed, lists)]
    assert both[0][0] == both[1][0]
    assert {problem.field for problem in both[0][1]} == {problem.field for problem in both[1][1]}


def test_a_long_list_where_no_list_belongs_is_left_out_or_refused_like_a_short_one() -> None:
    rows = bodies()
    for shape in (legacy.RecipientBody, legacy.PayoutBody, legacy.RecipientIdsBody):
        assert read(shape, {"payments": CompressedSequence(rows)}) == read(shape, {"payments": rows})
    assert read(legacy.BatchBody, {"sourceCurrency": CompressedSequence(rows)}) == read(
        legacy.BatchBody, {"sourceCurrency": rows}
    )


def test_the_names_of_a_long_batch_are_those_of_a_short_one() -> None:
    payments = collect_sent_payments(bodies())
    names = FieldNames({"currency": "sourceCurrency"}, {"payments": payments}, map_payment_fields)
    assert names == {"currency": "sourceCurrency", **map_payments_fields(payments)}
    assert len(names) == len(dict(names))
    for odd in ("payments", "payments[x].amount", f"payments[{COUNT}].amount", "payments[0].odd"):
        assert odd not in names


def test_a_refusal_mentions_what_it_is_about_however_long_the_batch_is() -> None:
    payments = collect_sent_payments(CompressedSequence(bodies(1500)))
    names = FieldNames({"currency": "sourceCurrency"}, {"payments": payments}, map_payment_fields)
    problems = [
        Problem("invalid_field", "payments[1400].amount is odd", "payments[1400].amount"),
        Problem("invalid_field", "not like payments[1300].recipient.id", "payments[7].recipient"),
        Problem("invalid_status", "currency and amount"),
    ]
    few = errors.select_mentioned_fields(names, problems)
    assert len(few) < len(names) / 10
    told = [
        errors.translate_failure(Refused(400, problems, field_map=one)) for one in (few, dict(names))
    ]
    assert told[0] == told[1]
    assert told[0].problems[0].field == "payments[1400].sourceAmount"


def shown(count: int = COUNT, *, ids: bool = True) -> list[dict[str, Any]]:
    """Build the payments as a service shows them."""
    return [
        {**({"id": f"P-{number}"} if ids else {}), **one, "targetAmount": one["sourceAmount"]}
        for number, one in enumerate(bodies(count))
    ]


def entries(*, named: bool = False, count: int = COUNT) -> list[dict[str, Any]]:
    return [
        {"recipient": one["recipient"], "sourceAmount": one["sourceAmount"]}
        | ({"id": f"P-{number}"} if named else {})
        for number, one in enumerate(bodies(count))
    ]


@pytest.mark.parametrize("named", [True, False])
def test_payments_in_the_order_of_their_entries_are_never_all_in_hand(named: bool) -> None:
    pairs = match_payments(CompressedSequence(shown()), CompressedSequence(entries(named=named)), "USD")
    assert isinstance(pairs, MappedSequence)
    assert pairs == match_payments(shown(), entries(named=named), "USD")


def shuffled(rows: list[Any]) -> list[Any]:
    return random.Random(1).sample(rows, len(rows))


STEPS = [
    pytest.param(shuffled(shown()), entries(), id="another order"),
    pytest.param(shuffled(shown()), entries(named=True), id="another order, by id"),
    pytest.param(shown()[:-1], entries(), id="one is not shown"),
    pytest.param(shown(), entries()[1:], id="one more is shown"),
    pytest.param(shown(), [*entries()[:-1], *entries(named=True)[-1:]], id="the last has an id"),
    pytest.param(shown(), [*entries(named=True)[:-1], *entries()[-1:]], id="the last has none"),
    pytest.param([{**one, "sourceAmount": "1.00"} for one in shown()], entries(), id="amounts"),
    pytest.param(
        [{**one, "sourceAmount": "much"} for one in shown()],
        [{**one, "sourceAmount": "much"} for one in entries()],
        id="no amounts",
    ),
    pytest.param(
        shown(),
        [
            {"recipient": one["recipient"], "targetAmount": one["sourceAmount"], "targetCurrency": "EUR"}
            for one in entries()
        ],
        id="the other side",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("payments", "sent_entries"), STEPS)
def test_payments_out_of_step_find_the_entries_that_short_lists_find(
    payments: list[Any], sent_entries: list[Any]
) -> None:
    assert [*match_payments(CompressedSequence(payments), CompressedSequence(sent_entries), "USD")] == match_payments(
        payments, sent_entries, "USD"
    )


def test_the_same_twice_is_taken_in_order() -> None:
    twice = [one for one in shown() for _ in range(2)]
    asked = [{**one, "memo": place} for one in entries() for place in ("first", "second")]
    pairs = match_payments(CompressedSequence(twice), CompressedSequence(asked), "USD")
    assert isinstance(pairs, MappedSequence)
    assert pairs == matching.match_payments(twice, asked, "USD")


def test_the_ledger_is_asked_for_very_many_recipients_some_at_a_time() -> None:
    ids = [f"R-{number}" for number in range(2 * batch_bodies.RECIPIENTS_PER_LOAD + 1)]
    asking = batch_bodies.load_recipient_facts(ids)
    asked = []
    given: Any = None
    try:
        while True:
            step = asking.send(given)
            asked.append(step.ids)
            given = {step.ids[0]: {"status": "disabled"}}
    except StopIteration as stop:
        found = stop.value
    assert [len(one) for one in asked] == [batch_bodies.RECIPIENTS_PER_LOAD, batch_bodies.RECIPIENTS_PER_LOAD, 1]
    assert [*found] == [one[0] for one in asked]
