"""Outcome rules for writes in doubt to recipients and their accounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.effects import Absent, Confirmed, InDoubtWrite, OutcomeRule, WriteOutcome
from mappings.recipient_outcomes import (
    build_account_change_call,
    build_account_creation_outcome_rule,
    build_recipient_creation_outcome_rule,
)

IN_DOUBT_WRITE = InDoubtWrite(datetime(2026, 3, 1, tzinfo=UTC), frozenset(), 1, None, False)


def read_outcome(outcome_rule: OutcomeRule, answer: dict[str, Any]) -> WriteOutcome:
    """Return the verdict for a service that gives this answer to each call."""
    rule_flow = outcome_rule(IN_DOUBT_WRITE)
    sent: Any = None
    while True:
        try:
            rule_flow.send(sent)
        except StopIteration as stop:
            outcome: WriteOutcome = stop.value
            return outcome
        sent = answer


@pytest.mark.parametrize(
    ("reference", "verdict"), [("R-9", Confirmed), (None, Confirmed), ("another", Absent)]
)
def test_created_recipient_has_no_reference_or_its_own_id(
    reference: str | None, verdict: type[WriteOutcome]
) -> None:
    body = {"type": "business", "name": "Acme", "email": "acme@example.com"}
    row = {**body, "id": "R-9", "referenceId": reference, "createdAt": "2026-03-01T09:00:00Z"}
    outcome_rule = build_recipient_creation_outcome_rule(body)
    assert isinstance(read_outcome(outcome_rule, {"recipients": [row], "recipient": row}), verdict)


@pytest.mark.parametrize("number", ["**34", "XXXXXX1234", "\u2022\u2022\u202234"])
@pytest.mark.parametrize("kind", ["created", "changed"])
def test_account_is_found_although_the_service_normalizes_the_address_of_its_bank(
    kind: str, number: str
) -> None:
    sent = {"type": "bank-transfer", "country": "CA", "accountNum": "1234", "bankRegion": "Ontario"}
    shown = {"type": "bank-transfer", "country": "CA", "accountNum": number, "bankRegionCode": "ON"}
    outcome_rule: OutcomeRule | None = build_account_creation_outcome_rule("R-9", sent, ["A-1"])
    if kind == "changed":
        old_account = {**shown, "recipientAccountId": "A-1", "bankRegionCode": "BC"}
        fields = {"bankRegion": "Ontario"}
        outcome_rule = build_account_change_call(
            "R-9", old_account, fields, [old_account]
        ).reconcile
    assert outcome_rule is not None
    recipient = {"id": "R-9", "accounts": [{**shown, "recipientAccountId": "A-2"}]}
    assert isinstance(read_outcome(outcome_rule, {"recipient": recipient}), Confirmed)
