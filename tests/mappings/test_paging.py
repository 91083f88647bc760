"""How far lists are read, given what services report about their pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.batches import list_batches
from mappings.cutover import match_batch
from mappings.effects import (
    JSON,
    MAX_PARALLEL_CALLS,
    Answer,
    Call,
    Flow,
    LoadFacts,
    Parallel,
    Request,
)
from mappings.failures import NoSuchOperation, Refused, Unreachable
from mappings.paging import count_pages_to_read

FULL = {"status": "open", "amount": "1.00", "totalPayments": 1, "currency": "USD"}


@pytest.mark.parametrize(
    ("body", "is_new", "pages"),
    [
        ({"meta": {"pages": 7}}, True, 7),
        ({"meta": {"pages": "7"}}, True, 7),
        ({"meta": {}}, True, 3),
        ({"meta": None}, True, 3),
        ({"meta": "x"}, True, 3),
        ({}, True, 3),
        ({"meta": {"pages": 7}}, False, 0),
        ({}, False, 0),
    ],
)
def test_a_list_is_read_as_far_as_the_service_says_and_there_is_something_new(
    body: dict[str, JSON], is_new: bool, pages: int
) -> None:
    assert count_pages_to_read(body, 2, is_new=is_new) == pages


@pytest.mark.parametrize(
    ("meta", "calls"), [({"pages": 1_000_000}, 1 + MAX_PARALLEL_CALLS), ({}, 4)]
)
def test_batches_are_read_past_a_page_of_those_that_are_known_and_no_further_than_there_are(
    meta: dict[str, JSON], calls: int
) -> None:
    known = {f"B-{number}": {"phase": "sent", "upstream": f"B-{number}"} for number in range(4)}
    pages = [["B-0", "B-1"], ["B-2", "B-3"], ["B-4"]]
    asked = 0

    def answered(step: Any) -> JSON:
        nonlocal asked
        if isinstance(step, Parallel):
            return [answered(one) for one in step.calls]
        if not isinstance(step, Call):
            return known if step == LoadFacts("batch") else {}
        asked += 1
        number = int(step.query["page"])
        rows = pages[number - 1] if number <= len(pages) else []
        return {"batches": [{"id": id_, **FULL} for id_ in rows], "meta": meta}

    answer = _played(list_batches(Request(now=datetime.now(UTC))), answered)
    assert answer.body["meta"]["records"] == 5
    assert asked == calls


def test_pages_of_batches_are_read_side_by_side_once_it_is_known_how_many_there_are() -> None:
    steps: list[list[str]] = []

    def answered(step: Any) -> JSON:
        calls = step.calls if isinstance(step, Parallel) else [step]
        if not isinstance(calls[0], Call):
            return {}
        numbers = [call.query["page"] for call in calls]
        steps.append(numbers)
        told = [{"batches": [{"id": f"B-{one}", **FULL}], "meta": {"pages": 11}} for one in numbers]
        return told if isinstance(step, Parallel) else told[0]

    answer = _played(list_batches(Request(now=datetime.now(UTC))), answered)
    assert answer.body["meta"]["records"] == 11
    assert steps == [["1"], [*map(str, range(2, 10))], ["10", "11"]]


def test_a_page_of_batches_that_cannot_be_read_is_no_shorter_list() -> None:
    def answered(step: Any) -> JSON:
        if isinstance(step, Parallel):
            return [{"batches": [{"id": "B-2", **FULL}]}, Refused(500, [])]
        return (
            {"batches": [{"id": "B-1", **FULL}], "meta": {"pages": 3}}
            if isinstance(step, Call)
            else {}
        )

    with pytest.raises(Refused):
        _played(list_batches(Request(now=datetime.now(UTC))), answered)


def test_a_path_that_is_found_missing_half_way_leaves_no_part_of_a_list() -> None:
    def answered(step: Any) -> JSON:
        if isinstance(step, Parallel):
            return [NoSuchOperation("GET /batches")] * len(step.calls)
        if not isinstance(step, Call):
            return {}
        return {"batches": [{"id": "B-1", **FULL}], "meta": {"pages": 3}}

    with pytest.raises(Unreachable):
        _played(list_batches(Request(now=datetime.now(UTC))), answered)


def test_payments_of_a_service_that_does_not_page_are_read_until_they_come_again() -> None:
    asked = 0

    def answered(step: Any) -> JSON:
        nonlocal asked
        if step.path.endswith("/summary"):
            raise Refused(404, [])
        asked += 1
        assert asked <= 2, "the same page again and again"
        return {"payments": [{"id": "P-1", "batch": {"id": "B-9", "createdAt": "then"}}]}

    shown, payments = {"id": "B-1", "createdAt": "then"}, [{"recipient": {"id": "R-1"}}]
    _played(match_batch(shown, payments, {}, None), answered)
    assert asked == 2


def _played(flow: Flow, answered: Callable[[Any], JSON]) -> Answer:
    given: JSON = None
    failure: Refused | None = None
    while True:
        try:
            step = flow.send(given) if failure is None else flow.throw(failure)
            given, failure = None, None
            try:
                given = answered(step)
            except Refused as refused:
                failure = refused
        except StopIteration as ended:
            answer: Answer = ended.value
            return answer
