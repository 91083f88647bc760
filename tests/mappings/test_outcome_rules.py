"""Outcome rules for writes in doubt, also at services that show little.

An invisible payment may still exist: sending it again would pay it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from mappings import money, outcome_matching
from mappings.batch_adds import Add, build_payment_add_outcome_rule
from mappings.batch_edits import Edit, build_batch_edit_outcome_rule
from mappings.batch_locks import ADDS
from mappings.batch_outcomes import build_batch_creation_outcome_rule
from mappings.batch_views import Batch
from mappings.effects import (
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    LoadFacts,
    OutcomeRule,
    Request,
    WriteOutcome,
)
from mappings.failures import Unreachable

SENT_PAYMENT = {"recipient": {"id": "R-1"}, "amount": "5.00", "currency": "USD"}
BATCH_BODY = {"currency": "USD", "payments": [SENT_PAYMENT]}
LISTED_BATCH = {"id": "B-9", "createdAt": "2026-03-01T09:00:00Z"}
IN_DOUBT_WRITE = InDoubtWrite(datetime(2026, 3, 1, tzinfo=UTC), frozenset(), 1, None, False)

SHOWN_PAYMENT: dict[str, Any] = {"id": "P-9", "recipient": {"id": "R-1"}, "sourceAmount": "5.00"}
SUMMARIES_WITHOUT_PAYMENTS: dict[str, dict[str, Any]] = {
    "no payments": {},
    "payments without recipients": {"payments": [{"id": "P-9", "sourceAmount": "5.00"}]},
}
ADDED_PAYMENTS = ({"recipient": {"id": "R-1"}, "sourceAmount": "5.00"},)


NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)


def build_batch(payments: Sequence[dict[str, Any]]) -> Batch:
    """Build a batch in dollars as it was before a write."""
    facts = {"phase": "sent", "upstream": "B-9", "currency": "USD"}
    return Batch("B-9", facts, [], rows=payments)


def build_add_rule(
    body: dict[str, Any], payments_before: Sequence[dict[str, Any]] = ()
) -> OutcomeRule:
    add = Add(build_batch(payments_before), Request(NOW, "add"), body)
    return build_payment_add_outcome_rule(add)


def build_edit_rule(payments_before: Sequence[dict[str, Any]] = (), **changes: Any) -> OutcomeRule:
    return build_batch_edit_outcome_rule(build_batch(payments_before), Edit(**changes), NOW)


OUTCOME_RULES: dict[str, Callable[[], OutcomeRule]] = {
    "a create": lambda: build_batch_creation_outcome_rule(BATCH_BODY),
    "an addition": lambda: build_add_rule(SENT_PAYMENT),
    "a change that adds": lambda: build_edit_rule(added_entries=ADDED_PAYMENTS),
}


def read_outcome(
    outcome_rule: OutcomeRule,
    summary: dict[str, Any],
    in_doubt_write: InDoubtWrite = IN_DOUBT_WRITE,
    listed_batch: dict[str, Any] = LISTED_BATCH,
    concurrent_adds: Mapping[str, Any] = MappingProxyType({}),
) -> WriteOutcome:
    """Return the verdict for a service that lists one batch with this summary.

    ``concurrent_adds`` to it are in progress or without a known id.
    """
    rule_flow = outcome_rule(in_doubt_write)
    answer: Any = None
    while True:
        try:
            step = rule_flow.send(answer)
        except StopIteration as stop:
            outcome: WriteOutcome = stop.value
            return outcome
        if isinstance(step, LoadFacts):
            answer = {ADDS: concurrent_adds} if step.kind == "batch" else {}
            continue
        assert isinstance(step, Call)
        is_list = step.path == "/batches"
        answer = {"batches": [listed_batch]} if is_list else {"batch": {"id": "B-9", **summary}}


@pytest.mark.parametrize("build_rule", OUTCOME_RULES.values(), ids=OUTCOME_RULES)
@pytest.mark.parametrize(
    "summary", SUMMARIES_WITHOUT_PAYMENTS.values(), ids=SUMMARIES_WITHOUT_PAYMENTS
)
def test_summary_without_payments_is_inconclusive(
    build_rule: Callable[[], OutcomeRule], summary: dict[str, Any]
) -> None:
    assert isinstance(read_outcome(build_rule(), summary), Inconclusive)


@pytest.mark.parametrize("build_rule", OUTCOME_RULES.values(), ids=OUTCOME_RULES)
def test_summary_with_payments_is_conclusive(build_rule: Callable[[], OutcomeRule]) -> None:
    assert isinstance(read_outcome(build_rule(), {"payments": [SHOWN_PAYMENT]}), Confirmed)
    assert isinstance(read_outcome(build_rule(), {"payments": []}), Absent)


EURO_PAYMENT = {"recipient": {"id": "R-1"}, "targetAmount": "5.00", "targetCurrency": "EUR"}
SENT_EURO_PAYMENT = {"recipient": {"id": "R-1"}, "amount": "5.00", "currency": "EUR"}
OUTCOME_RULES_IN_EUROS: dict[str, Callable[[], OutcomeRule]] = {
    "a create": lambda: build_batch_creation_outcome_rule(
        {"currency": "USD", "payments": [SENT_EURO_PAYMENT]}
    ),
    "an addition": lambda: build_add_rule(SENT_EURO_PAYMENT),
    "a change that adds": lambda: build_edit_rule(added_entries=(EURO_PAYMENT,)),
}


@pytest.mark.parametrize(
    ("build_rule", "is_edit_possible"),
    [(rule, name != "a create") for name, rule in OUTCOME_RULES_IN_EUROS.items()],
    ids=OUTCOME_RULES_IN_EUROS,
)
def test_payment_in_other_currencies_is_inconclusive_unless_amounts_decide(
    build_rule: Callable[[], OutcomeRule], *, is_edit_possible: bool
) -> None:
    euro_payment = {
        **SHOWN_PAYMENT,
        "sourceCurrency": "USD",
        "targetAmount": "4.20",
        "targetCurrency": "GBP",
    }
    assert isinstance(read_outcome(build_rule(), {"payments": [euro_payment]}), Inconclusive)
    euros = {"targetAmount": "5.00", "targetCurrency": "EUR"}
    assert isinstance(
        read_outcome(build_rule(), {"payments": [{**euro_payment, **euros}]}), Confirmed
    )
    smaller_amount = {"targetAmount": "4.00", "targetCurrency": "EUR"}
    # In the batch of an add somebody may have edited the payment that it made.
    assert isinstance(
        read_outcome(build_rule(), {"payments": [{**euro_payment, **smaller_amount}]}),
        Inconclusive if is_edit_possible else Absent,
    )
    other_payment = {**euro_payment, "recipient": {"id": "R-2"}}
    assert isinstance(read_outcome(build_rule(), {"payments": [other_payment]}), Absent)


@pytest.mark.parametrize("build_rule", OUTCOME_RULES.values(), ids=OUTCOME_RULES)
def test_payment_without_amount_is_inconclusive(build_rule: Callable[[], OutcomeRule]) -> None:
    payment_without_amount = {"id": "P-9", "recipient": {"id": "R-1"}}
    assert isinstance(
        read_outcome(build_rule(), {"payments": [payment_without_amount]}), Inconclusive
    )


def test_target_amount_in_batch_currency_is_the_paid_amount() -> None:
    sent_payment = {"recipient": {"id": "R-1"}, "targetAmount": "5.00", "targetCurrency": "USD"}
    listed_payment = {
        **SHOWN_PAYMENT,
        "sourceCurrency": "USD",
        "targetAmount": "4.60",
        "targetCurrency": "EUR",
    }
    outcome_rule = build_edit_rule(added_entries=(sent_payment,))
    assert isinstance(read_outcome(outcome_rule, {"payments": [listed_payment]}), Confirmed)


def test_batch_that_the_service_described_itself_is_found() -> None:
    outcome_rule = build_batch_creation_outcome_rule(BATCH_BODY)
    described_batch = {**LISTED_BATCH, "description": "Payout of 1 March"}
    summary = {"payments": [SHOWN_PAYMENT], "description": "Payout of 1 March"}
    outcome = read_outcome(outcome_rule, summary, listed_batch=described_batch)
    assert isinstance(outcome, Confirmed)
    outcome_rule = build_batch_creation_outcome_rule({**BATCH_BODY, "description": "another"})
    outcome = read_outcome(outcome_rule, summary, listed_batch=described_batch)
    assert isinstance(outcome, Absent)


def test_batch_claimed_by_another_write_is_not_read() -> None:
    write_of_claimed_batch = InDoubtWrite(
        IN_DOUBT_WRITE.not_before, frozenset({"B-9"}), 1, None, False
    )
    assert isinstance(
        read_outcome(build_batch_creation_outcome_rule(BATCH_BODY), {}, write_of_claimed_batch),
        Absent,
    )


def test_list_that_ends_before_its_count_is_no_proof_of_absence() -> None:
    rule_flow = build_batch_creation_outcome_rule(BATCH_BODY)(IN_DOUBT_WRITE)
    rule_flow.send(None)
    with pytest.raises(Unreachable):
        rule_flow.send({"batches": [], "meta": {"pages": 1, "records": 1}})


@pytest.mark.parametrize("creation_fields", [{}, {"createdAt": None}], ids=["unlisted", "empty"])
def test_undated_batch_of_list_is_dated_by_its_summary(
    creation_fields: dict[str, Any],
) -> None:
    listed_batch = {"id": "B-9", **creation_fields}
    outcome_rule, summary = (
        build_batch_creation_outcome_rule(BATCH_BODY),
        {"payments": [SHOWN_PAYMENT]},
    )
    old_summary, new_summary = (
        {**summary, "createdAt": f"{day}T09:00:00Z"} for day in ("2026-02-28", "2026-03-01")
    )
    assert isinstance(read_outcome(outcome_rule, old_summary, listed_batch=listed_batch), Absent)
    assert isinstance(read_outcome(outcome_rule, new_summary, listed_batch=listed_batch), Confirmed)
    assert isinstance(read_outcome(outcome_rule, summary, listed_batch=listed_batch), Confirmed)


EARLIER_PAYMENT = {**SHOWN_PAYMENT, "id": "P-1"}
PAYMENT_WITHOUT_ID = {name: value for name, value in SHOWN_PAYMENT.items() if name != "id"}
OUTCOME_RULES_OF_CHANGES: dict[str, Callable[[], OutcomeRule]] = {
    "an addition": lambda: build_add_rule(SENT_PAYMENT, [EARLIER_PAYMENT]),
    "a change that adds": lambda: build_edit_rule([EARLIER_PAYMENT], added_entries=ADDED_PAYMENTS),
    "a change": lambda: build_edit_rule(
        [EARLIER_PAYMENT], build_changes=lambda: {"P-1": {"sourceAmount": "6.00"}}
    ),
    "a removal": lambda: build_edit_rule([EARLIER_PAYMENT], removed_ids=["P-1"]),
}


@pytest.mark.parametrize(
    "build_rule", OUTCOME_RULES_OF_CHANGES.values(), ids=OUTCOME_RULES_OF_CHANGES
)
def test_payment_without_id_is_not_mistaken_for_another(
    build_rule: Callable[[], OutcomeRule],
) -> None:
    """It may be the earlier payment, so it proves neither an addition nor a removal."""
    assert isinstance(read_outcome(build_rule(), {"payments": [PAYMENT_WITHOUT_ID]}), Inconclusive)


def build_payment_with_memo(memo: str | None) -> dict[str, Any]:
    return {**SHOWN_PAYMENT, "memo": memo}


@pytest.mark.parametrize(
    ("concurrent_body", "summary", "outcome_type"),
    [
        ({**SENT_PAYMENT, "amount": "6.00"}, SHOWN_PAYMENT, Confirmed),
        ({**SENT_PAYMENT, "memo": "other"}, SHOWN_PAYMENT, Inconclusive),
        ({**SENT_PAYMENT, "memo": "other"}, build_payment_with_memo("other"), Absent),
        ({**SENT_PAYMENT, "memo": "other"}, build_payment_with_memo("mine"), Confirmed),
        ({**SENT_PAYMENT, "memo": "other"}, build_payment_with_memo("a third"), Inconclusive),
        (SENT_EURO_PAYMENT, SHOWN_PAYMENT, Inconclusive),
    ],
    ids=["other amount", "no memo", "its memo", "my memo", "another memo", "other currency"],
)
def test_added_payment_is_not_mistaken_for_a_concurrent_one(
    concurrent_body: dict[str, Any], summary: dict[str, Any], outcome_type: type[WriteOutcome]
) -> None:
    body = {**SENT_PAYMENT, "memo": "mine"}
    outcome = read_outcome(
        build_add_rule(body),
        {"payments": [summary]},
        concurrent_adds={"another add": concurrent_body},
    )
    assert type(outcome) is outcome_type


def build_shown_payments(sent_payments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shows payments with the newest first, as some services do."""
    shown_payments = [{"id": f"P-{n}", **sent} for n, sent in enumerate(sent_payments)]
    return shown_payments[::-1]


def build_creation_rule(payments: list[dict[str, Any]]) -> OutcomeRule:
    return build_batch_creation_outcome_rule({"currency": "USD", "payments": payments})


def build_adding_edit_rule(payments: list[dict[str, Any]]) -> OutcomeRule:
    return build_edit_rule(added_entries=payments)


@pytest.mark.parametrize("build_rule", [build_creation_rule, build_adding_edit_rule])
@pytest.mark.parametrize("name", ["sourceAmount", "memo"])
def test_comparisons_grow_linearly_with_the_payments_of_one_recipient(
    name: str,
    build_rule: Callable[[list[dict[str, Any]]], OutcomeRule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    for module, function in ((money, "parse_amount"), (outcome_matching, "has_same_memo")):
        original = getattr(module, function)

        def count_call(*arguments: Any, original: Callable[..., Any] = original) -> Any:
            calls.append(arguments)
            return original(*arguments)

        monkeypatch.setattr(module, function, count_call)
    counts = []
    for size in (100, 200):
        calls.clear()
        sent_payments = [{**ADDED_PAYMENTS[0], name: f"{n + 1}"} for n in range(size)]
        summary = {"payments": build_shown_payments(sent_payments)}
        assert isinstance(read_outcome(build_rule(sent_payments), summary), Confirmed)
        counts.append(len(calls))
    assert counts[1] <= 2.1 * counts[0]


def test_memo_with_asterisks_is_found_as_it_was_sent() -> None:
    rule = build_add_rule({**SENT_PAYMENT, "memo": "* 3 * 5"})
    shown_payments = [
        {**SHOWN_PAYMENT, "id": f"P-{n}", "memo": memo} for n, memo in enumerate(["* 3 * 5", "a"])
    ]
    outcome = read_outcome(rule, {"payments": shown_payments})
    assert isinstance(outcome, Confirmed)
    assert outcome.object_id == "P-0"
