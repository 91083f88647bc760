"""Outcome rules for writes in doubt, also at services that show little.

An invisible payment may still exist: sending it again would pay it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.effects import (
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    OutcomeRule,
    Step,
    WriteOutcome,
)
from mappings.outcome_rules import (
    build_added_payment_rule,
    build_created_batch_rule,
    build_edited_batch_rule,
)

SENT = {"recipient": {"id": "R-1"}, "amount": "5.00", "currency": "USD"}
BODY = {"currency": "USD", "payments": [SENT]}
LISTED = {"id": "B-9", "createdAt": "2026-03-01T09:00:00Z"}
SENDING = InDoubtWrite(datetime(2026, 3, 1, tzinfo=UTC), frozenset(), 1, None, False)

SHOWN: dict[str, Any] = {"id": "P-9", "recipient": {"id": "R-1"}, "sourceAmount": "5.00"}
UNTOLD: dict[str, dict[str, Any]] = {
    "no payments": {},
    "payments without recipients": {"payments": [{"id": "P-9", "sourceAmount": "5.00"}]},
}
ADDED = ({"recipient": {"id": "R-1"}, "sourceAmount": "5.00"},)


def beside(*others: dict[str, Any]) -> Callable[[], Generator[Step, Any, list[dict[str, Any]]]]:
    """Build concurrent adds to the batch, in progress or without a known id."""

    def other_adds() -> Generator[Step, Any, list[dict[str, Any]]]:
        yield from ()
        return list(others)

    return other_adds


SETTLES: dict[str, Callable[[], OutcomeRule]] = {
    "a create": lambda: build_created_batch_rule(BODY),
    "an addition": lambda: build_added_payment_rule("B-9", SENT, "USD", (), beside()),
    "a change that adds": lambda: build_edited_batch_rule("B-9", (), "USD", additions=ADDED),
}


def read(
    settle: OutcomeRule,
    shown: dict[str, Any],
    sending: InDoubtWrite = SENDING,
    listed: dict[str, Any] = LISTED,
) -> WriteOutcome:
    """Return the verdict for a service that lists one batch with this summary."""
    reading = settle(sending)
    answer: Any = None
    while True:
        try:
            step = reading.send(answer)
        except StopIteration as stop:
            verdict: WriteOutcome = stop.value
            return verdict
        assert isinstance(step, Call)
        is_list = step.path == "/batches"
        answer = {"batches": [listed]} if is_list else {"batch": {"id": "B-9", **shown}}


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
@pytest.mark.parametrize("summary", UNTOLD.values(), ids=UNTOLD)
def test_what_a_summary_does_not_tell_has_not_failed_to_happen(
    settle: Callable[[], OutcomeRule], summary: dict[str, Any]
) -> None:
    assert isinstance(read(settle(), summary), Inconclusive)


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
def test_what_a_summary_tells_is_believed(settle: Callable[[], OutcomeRule]) -> None:
    assert isinstance(read(settle(), {"payments": [SHOWN]}), Confirmed)
    assert isinstance(read(settle(), {"payments": []}), Absent)


IN_EUROS = {"recipient": {"id": "R-1"}, "targetAmount": "5.00", "targetCurrency": "EUR"}
SENT_IN_EUROS = {"recipient": {"id": "R-1"}, "amount": "5.00", "currency": "EUR"}
IN_ANOTHER: dict[str, Callable[[], OutcomeRule]] = {
    "a create": lambda: build_created_batch_rule({"currency": "USD", "payments": [SENT_IN_EUROS]}),
    "an addition": lambda: build_added_payment_rule("B-9", SENT_IN_EUROS, "USD", (), beside()),
    "a change that adds": lambda: build_edited_batch_rule("B-9", (), "USD", additions=(IN_EUROS,)),
}


@pytest.mark.parametrize("settle", IN_ANOTHER.values(), ids=IN_ANOTHER)
def test_a_payment_shown_in_other_currencies_than_was_asked_for_may_be_the_one(
    settle: Callable[[], OutcomeRule],
) -> None:
    shown = {**SHOWN, "sourceCurrency": "USD", "targetAmount": "4.20", "targetCurrency": "GBP"}
    assert isinstance(read(settle(), {"payments": [shown]}), Inconclusive)
    euros = {"targetAmount": "5.00", "targetCurrency": "EUR"}
    assert isinstance(read(settle(), {"payments": [{**shown, **euros}]}), Confirmed)
    fewer = {"targetAmount": "4.00", "targetCurrency": "EUR"}
    assert isinstance(read(settle(), {"payments": [{**shown, **fewer}]}), Absent)
    other = {**shown, "recipient": {"id": "R-2"}}
    assert isinstance(read(settle(), {"payments": [other]}), Absent)


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
def test_a_payment_without_an_amount_may_be_the_one(settle: Callable[[], OutcomeRule]) -> None:
    bare = {"id": "P-9", "recipient": {"id": "R-1"}}
    assert isinstance(read(settle(), {"payments": [bare]}), Inconclusive)


def test_a_target_amount_in_the_batches_own_currency_is_what_is_paid() -> None:
    asked = {"recipient": {"id": "R-1"}, "targetAmount": "5.00", "targetCurrency": "USD"}
    shown = {**SHOWN, "sourceCurrency": "USD", "targetAmount": "4.60", "targetCurrency": "EUR"}
    settle = build_edited_batch_rule("B-9", (), "USD", additions=(asked,))
    assert isinstance(read(settle, {"payments": [shown]}), Confirmed)


def test_of_a_batch_that_another_write_made_nothing_need_be_told() -> None:
    claimed = InDoubtWrite(SENDING.not_before, frozenset({"B-9"}), 1, None, False)
    assert isinstance(read(build_created_batch_rule(BODY), {}, claimed), Absent)


@pytest.mark.parametrize("created", [{}, {"createdAt": None}], ids=["unlisted", "empty"])
def test_a_batch_that_the_list_does_not_date_is_dated_by_its_summary(
    created: dict[str, Any],
) -> None:
    listed = {"id": "B-9", **created}
    settle, paying = build_created_batch_rule(BODY), {"payments": [SHOWN]}
    old, new = ({**paying, "createdAt": f"{day}T09:00:00Z"} for day in ("2026-02-28", "2026-03-01"))
    assert isinstance(read(settle, old, listed=listed), Absent)
    assert isinstance(read(settle, new, listed=listed), Confirmed)
    assert isinstance(read(settle, paying, listed=listed), Confirmed)


THERE = {**SHOWN, "id": "P-1", "upstream": "P-1"}
UNNAMED = {name: value for name, value in SHOWN.items() if name != "id"}
CHANGES: dict[str, Callable[[], OutcomeRule]] = {
    "an addition": lambda: build_added_payment_rule("B-9", SENT, "USD", ["P-1"], beside()),
    "a change that adds": lambda: build_edited_batch_rule("B-9", [THERE], "USD", additions=ADDED),
    "a change": lambda: build_edited_batch_rule(
        "B-9", [THERE], "USD", build_changes=lambda: {"P-1": {"sourceAmount": "6.00"}}
    ),
    "a removal": lambda: build_edited_batch_rule("B-9", [THERE], "USD", list_removed_ids=lambda: ["P-1"]),
}


@pytest.mark.parametrize("settle", CHANGES.values(), ids=CHANGES)
def test_a_payment_that_a_summary_shows_without_its_id_is_not_taken_for_another(
    settle: Callable[[], OutcomeRule],
) -> None:
    """It may be the earlier payment, so it proves neither an addition nor a removal."""
    assert isinstance(read(settle(), {"payments": [UNNAMED]}), Inconclusive)


def shown_with(memo: str | None) -> dict[str, Any]:
    return {**SHOWN, "memo": memo}


@pytest.mark.parametrize(
    ("concurrent_body", "summary", "verdict"),
    [
        ({**SENT, "amount": "6.00"}, SHOWN, Confirmed),
        ({**SENT, "memo": "other"}, SHOWN, Inconclusive),
        ({**SENT, "memo": "other"}, shown_with("other"), Absent),
        ({**SENT, "memo": "other"}, shown_with("mine"), Confirmed),
        ({**SENT, "memo": "other"}, shown_with("a third"), Inconclusive),
        (SENT_IN_EUROS, SHOWN, Inconclusive),
    ],
    ids=["other amount", "no memo", "its memo", "my memo", "another memo", "other currency"],
)
def test_an_addition_is_not_taken_for_another_that_is_under_way(
    concurrent_body: dict[str, Any], summary: dict[str, Any], verdict: type[WriteOutcome]
) -> None:
    body = {**SENT, "memo": "mine"}
    settle = build_added_payment_rule("B-9", body, "USD", (), beside(concurrent_body))
    assert type(read(settle, {"payments": [summary]})) is verdict
