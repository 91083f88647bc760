"""How far lists are read, by what services tell of their pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.batches import list_batches
from mappings.cutover import batch_found
from mappings.grammar import JSON, Answer, Call, Flow, Recall, Refused, Request
from mappings.paging import pages_to_read

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
    assert pages_to_read(body, 2, is_new=is_new) == pages


@pytest.mark.parametrize("meta", [{"pages": 1_000_000}, {}])
def test_batches_are_read_past_a_page_of_those_that_are_known_and_no_further_than_there_are(
    meta: dict[str, JSON],
) -> None:
    known = {f"B-{number}": {"phase": "sent", "upstream": f"B-{number}"} for number in range(4)}
    pages = [["B-0", "B-1"], ["B-2", "B-3"], ["B-4"]]
    asked = 0

    def answered(step: Any) -> JSON:
        nonlocal asked
        if not isinstance(step, Call):
            return known if step == Recall("batch") else {}
        asked += 1
        number = int(step.query["page"])
        rows = pages[number - 1] if number <= len(pages) else []
        return {"batches": [{"id": id_, **FULL} for id_ in rows], "meta": meta}

    answer = _played(list_batches(Request(now=datetime.now(UTC))), answered)
    assert answer.body["meta"]["records"] == 5
    assert asked == len(pages) + 1


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
    _played(batch_found(shown, payments, {}, None), answered)
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
