"""Outcome rules for writes in doubt to recipients and their accounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.effects import Absent, Confirmed, InDoubtWrite, OutcomeRule, WriteOutcome
from mappings.recipient_outcomes import build_recipient_creation_outcome_rule

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
