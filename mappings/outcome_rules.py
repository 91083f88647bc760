"""Outcome rules: how to find out, by reading, whether a write without a response was executed.

Each function builds the rule of one call: a generator that reads from the service and returns
``Confirmed``, ``Absent`` or ``Inconclusive``. An object matches if it has all sent values that the
service is known to show unchanged (``select_…_match_fields``). If there are several matches or
several identical writes in doubt, the remaining values must agree too. More matches than such
writes prove nothing: ``Inconclusive``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from mappings.batch_views import EDITABLE_STATUSES, derive_batch_status
from mappings.current import SUMMARY_PATH
from mappings.effects import (
    JSON,
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    OutcomeRule,
    Step,
    WriteOutcome,
)
from mappings.outcome_matching import JSONObject, fetch_if_exists
from mappings.payloads import extract_batch

OutcomeReads = Generator[Step, Any, WriteOutcome]


OTHER_ADD_REASON = "another add may have created the payment"
OTHER_AMOUNT_REASON = (
    "the service shows another new payment to the recipient, which may be an edited one"
)


def select_payment_match_fields(body: JSONObject) -> dict[str, JSON]:
    """Returns a payment without its memo, because the document does not say that it is stored."""
    match_fields = dict(body)
    match_fields.pop("memo", None)
    return match_fields


def fetch_summary_if_exists(batch_id: str) -> Generator[Step, Any, JSON]:
    """Calls GET /batch/:id/summary; None if the service does not have the batch."""
    return (yield from fetch_if_exists(SUMMARY_PATH.format(id=batch_id), needs_proof=True))


def determine_outcome_without_batch(write: InDoubtWrite) -> Absent | Inconclusive:
    """Determines the outcome of a change of a batch that the service does not show."""
    # It had the batch before the write, and another replica may lack it for a while.
    if write.is_recent:
        return Inconclusive("the service does not show the batch")
    return Absent()  # the batch was deleted, and pays nobody


def build_batch_deletion_outcome_rule(upstream_id: str) -> OutcomeRule:
    """Builds the rule of a batch deletion; it reads GET /batch/:id/summary."""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        summary = yield from fetch_summary_if_exists(upstream_id)
        # Some services still show a deleted batch, so that an operator may know better.
        status = "deleted" if summary is None else extract_batch(summary).get("status")
        is_deleted = status in ("deleted", "archived")
        return Confirmed({"object": "deleted"}) if is_deleted else Absent()

    return read_outcome


def build_quote_outcome_rule(upstream_id: str, previous_expiry: JSON) -> OutcomeRule:
    """Builds the rule of a quote; it reads GET /batch/:id/summary.

    ``previous_expiry`` is the ``quoteExpiredAt`` before the call.

    A quote that cannot be seen is absent: it may be repeated until processing starts. An operator
    may know better, because services need not show the time.
    """

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        batch = extract_batch((yield Call("GET", SUMMARY_PATH.format(id=upstream_id))))
        expiry = batch.get("quoteExpiredAt")
        return Confirmed({"batch": batch}) if expiry and expiry != previous_expiry else Absent()

    return read_outcome


def build_batch_start_call(upstream_id: str) -> Call:
    """Builds the call of a start; its rule reads GET /batch/:id/summary.

    Any status but open and pending confirms the start.
    """

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        batch = extract_batch((yield Call("GET", SUMMARY_PATH.format(id=upstream_id))))
        status = derive_batch_status(batch.get)
        # Unknown words count as started: treating a started batch as open could start it twice.
        if status and status not in EDITABLE_STATUSES:
            return Confirmed({"batch": batch})
        if not status:
            return Inconclusive("the service shows no status of the batch")
        return Absent(is_old_state_shown=True)

    # Sent only while the client waits: a disconnected client may start the batch in another way.
    path = f"/batches/{upstream_id}/start-processing"
    return Call("POST", path, reconcile=read_outcome, only_while_client_waits=True)
