"""What is read of a write whose outcome is unknown, and what a service that shows little says of it.

That something cannot be seen is not that it did not happen: what is sent again is paid again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.grammar import Call, CannotTell, DidNot, Happened, Sending, Settle, Verdict
from mappings.settling import added_payment, created_batch, edited_batch

SENT = {"recipient": {"id": "R-1"}, "amount": "5.00", "currency": "USD"}
BODY = {"currency": "USD", "payments": [SENT]}
LISTED = {"id": "B-9", "createdAt": "2026-03-01T09:00:00Z"}
SENDING = Sending(datetime(2026, 3, 1, tzinfo=UTC), frozenset(), 1, None, False)

SHOWN: dict[str, Any] = {"id": "P-9", "recipient": {"id": "R-1"}, "sourceAmount": "5.00"}
UNTOLD: dict[str, dict[str, Any]] = {
    "no payments": {},
    "payments without recipients": {"payments": [{"id": "P-9", "sourceAmount": "5.00"}]},
}
ADDED = ({"recipient": {"id": "R-1"}, "sourceAmount": "5.00"},)
SETTLES: dict[str, Callable[[], Settle]] = {
    "a create": lambda: created_batch(BODY),
    "an addition": lambda: added_payment("B-9", SENT, "USD", ()),
    "a change that adds": lambda: edited_batch("B-9", (), "USD", added=ADDED),
}


def read(settle: Settle, shown: dict[str, Any], sending: Sending = SENDING) -> Verdict:
    """What it says of a service that lists one batch, whose summary shows this."""
    reading = settle(sending)
    answer: Any = None
    while True:
        try:
            step = reading.send(answer)
        except StopIteration as stop:
            verdict: Verdict = stop.value
            return verdict
        assert isinstance(step, Call)
        is_list = step.path == "/batches"
        answer = {"batches": [LISTED]} if is_list else {"batch": {"id": "B-9", **shown}}


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
@pytest.mark.parametrize("shown", UNTOLD.values(), ids=UNTOLD)
def test_what_a_summary_does_not_tell_has_not_failed_to_happen(
    settle: Callable[[], Settle], shown: dict[str, Any]
) -> None:
    assert isinstance(read(settle(), shown), CannotTell)


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
def test_what_a_summary_tells_is_believed(settle: Callable[[], Settle]) -> None:
    assert isinstance(read(settle(), {"payments": [SHOWN]}), Happened)
    assert isinstance(read(settle(), {"payments": []}), DidNot)


def test_of_a_batch_that_another_write_made_nothing_need_be_told() -> None:
    claimed = Sending(SENDING.since, frozenset({"B-9"}), 1, None, False)
    assert isinstance(read(created_batch(BODY), {}, claimed), DidNot)


THERE = {**SHOWN, "id": "P-1", "upstream": "P-1"}
UNNAMED = {name: value for name, value in SHOWN.items() if name != "id"}
CHANGES: dict[str, Callable[[], Settle]] = {
    "an addition": lambda: added_payment("B-9", SENT, "USD", ["P-1"]),
    "a change that adds": lambda: edited_batch("B-9", [THERE], "USD", added=ADDED),
    "a change": lambda: edited_batch(
        "B-9", [THERE], "USD", changed=lambda: {"P-1": {"sourceAmount": "6.00"}}
    ),
    "a removal": lambda: edited_batch("B-9", [THERE], "USD", removed=lambda: ["P-1"]),
}


@pytest.mark.parametrize("settle", CHANGES.values(), ids=CHANGES)
def test_a_payment_that_a_summary_shows_without_its_id_is_not_taken_for_another(
    settle: Callable[[], Settle],
) -> None:
    """It may be the one that was there before: added it was not, nor removed."""
    assert isinstance(read(settle(), {"payments": [UNNAMED]}), CannotTell)
