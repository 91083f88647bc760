"""How far lists are read, given what services report about their pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.batches import list_batches
from mappings.cutover import match_legacy_batch
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
from mappings.errors import NOT_FOUND
from mappings.failures import NoSuchOperation, Refused, Unreachable
from mappings.paging import compute_last_page_to_read

BATCH_FIELDS = {"status": "open", "amount": "1.00", "totalPayments": 1, "currency": "USD"}


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
def test_pages_to_read_depend_on_counts_and_new_rows(
    body: dict[str, JSON], is_new: bool, pages: int
) -> None:
    assert compute_last_page_to_read(body, 2, is_new=is_new) == pages


@pytest.mark.parametrize(
    ("meta", "calls"), [({"pages": 1_000_000}, 1 + MAX_PARALLEL_CALLS), ({}, 4)]
)
def test_batch_pages_are_read_past_known_batches_up_to_the_count(
    meta: dict[str, JSON], calls: int
) -> None:
    batch_states = {
        f"B-{number}": {"phase": "sent", "upstream": f"B-{number}"} for number in range(4)
    }
    pages = [["B-0", "B-1"], ["B-2", "B-3"], ["B-4"]]
    page_count = 0

    def respond_to_step(step: Any) -> JSON:
        nonlocal page_count
        if isinstance(step, Parallel):
            return [respond_to_step(call) for call in step.calls]
        if not isinstance(step, Call):
            return batch_states if step == LoadFacts("batch") else {}
        page_count += 1
        number = int(step.query["page"])
        page_ids = pages[number - 1] if number <= len(pages) else []
        return {"batches": [{"id": id_, **BATCH_FIELDS} for id_ in page_ids], "meta": meta}

    answer = run_flow(list_batches(Request(now=datetime.now(UTC))), respond_to_step)
    assert answer.body["meta"]["records"] == 5
    assert page_count == calls


def test_batch_pages_are_read_concurrently_once_counted() -> None:
    steps: list[list[str]] = []

    def respond_to_step(step: Any) -> JSON:
        calls = step.calls if isinstance(step, Parallel) else [step]
        if not isinstance(calls[0], Call):
            return {}
        page_numbers = [call.query["page"] for call in calls]
        steps.append(page_numbers)
        pages = [
            {"batches": [{"id": f"B-{number}", **BATCH_FIELDS}], "meta": {"pages": 11}}
            for number in page_numbers
        ]
        return pages if isinstance(step, Parallel) else pages[0]

    answer = run_flow(list_batches(Request(now=datetime.now(UTC))), respond_to_step)
    assert answer.body["meta"]["records"] == 11
    assert steps == [["1"], [*map(str, range(2, 10))], ["10", "11"]]


def test_unreadable_batch_page_is_an_error() -> None:
    def respond_to_step(step: Any) -> JSON:
        if isinstance(step, Parallel):
            return [{"batches": [{"id": "B-2", **BATCH_FIELDS}]}, Refused(500, [])]
        return (
            {"batches": [{"id": "B-1", **BATCH_FIELDS}], "meta": {"pages": 3}}
            if isinstance(step, Call)
            else {}
        )

    with pytest.raises(Refused):
        run_flow(list_batches(Request(now=datetime.now(UTC))), respond_to_step)


def test_endpoint_missing_during_paging_leaves_no_partial_list() -> None:
    def respond_to_step(step: Any) -> JSON:
        if isinstance(step, Parallel):
            return [NoSuchOperation("GET /batches")] * len(step.calls)
        if not isinstance(step, Call):
            return {}
        return {"batches": [{"id": "B-1", **BATCH_FIELDS}], "meta": {"pages": 3}}

    with pytest.raises(Unreachable):
        run_flow(list_batches(Request(now=datetime.now(UTC))), respond_to_step)


def test_unpaged_payments_are_read_until_they_repeat() -> None:
    call_count = 0

    def respond_to_step(step: Any) -> JSON:
        nonlocal call_count
        if isinstance(step, Parallel):
            return [respond_to_step(call) for call in step.calls]
        if step.path.endswith("/summary"):
            raise Refused(404, [NOT_FOUND])
        call_count += 1
        assert call_count <= 2, "the same page again and again"
        return {"payments": [{"id": "P-1", "batch": {"id": "B-9", "createdAt": "then"}}]}

    listed_batch, payments = {"id": "B-1", "createdAt": "then"}, [{"recipient": {"id": "R-1"}}]
    run_flow(match_legacy_batch(listed_batch, payments, {}, None), respond_to_step)
    assert call_count == 2


def run_flow(flow: Flow, answer_step: Callable[[Any], JSON]) -> Answer:
    reply: JSON = None
    failure: Refused | None = None
    while True:
        try:
            step = flow.send(reply) if failure is None else flow.throw(failure)
            reply, failure = None, None
            try:
                reply = answer_step(step)
            except Refused as refused:
                failure = refused
        except StopIteration as ended:
            answer: Answer = ended.value
            return answer
