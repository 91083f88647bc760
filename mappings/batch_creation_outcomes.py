"""Outcome rule for batch creates, which finds the batch in the service's list."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mappings.batch_views import EDITABLE_STATUSES, derive_batch_status
from mappings.effects import (
    JSON,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    MayExist,
    OutcomeRule,
    Step,
)
from mappings.failures import NoSuchOperation
from mappings.lazy_sequences import map_rows
from mappings.objects import drop_nulls
from mappings.outcome_matching import (
    JSONObject,
    PaymentTest,
    ShownPayments,
    build_older_object_reason,
    fetch_whole_list,
    has_recipient,
    is_created_after_write,
    is_exact_payment,
    is_possible_payment,
    is_same_payment,
    is_shown_value_compatible,
    parse_creation_time,
    select_created_object,
)
from mappings.outcome_rules import (
    OutcomeReads,
    fetch_summary_if_exists,
    select_payment_match_fields,
)
from mappings.paging import parse_count_or_default
from mappings.payloads import (
    extract_batch,
    extract_payments,
    find_all_payments,
    has_more_payments,
)

OTHER_CURRENCY_REASON = "the service shows no amount in the requested currency"


def build_batch_creation_outcome_rule(body: JSONObject) -> OutcomeRule:
    """Builds the rule of a batch create.

    It reads GET /batches, if the service has it, and GET /batch/:id/summary of possible matches.
    """

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if write.operator_object_id is not None:
            return (yield from _confirm_operator_named_batch(write, body))
        try:
            rows = yield from fetch_whole_list("/batches", "batches", {}, probe_ids=())
        except NoSuchOperation:
            # A batch that cannot be found is never started, so it pays nobody, and the client may
            # create another one.
            return MayExist()
        if rows is None:
            return MayExist(reason="the service lists too many batches")
        candidates = [
            row
            for row in rows
            if _is_possible_batch(body, row) and is_created_after_write(row, write)
        ]
        result = yield from _select_batches_paying_same(body, candidates, write)
        if isinstance(result, Inconclusive):
            return result
        matching_rows, exact_ids = result
        match = select_created_object(
            matching_rows, write, is_full_match=lambda row: row["id"] in exact_ids
        )
        if isinstance(match, dict):
            # Of a new one no client has the id, so that one without a date that was started is older.
            is_started = derive_batch_status(match.get) not in (None, *EDITABLE_STATUSES)
            if is_started and parse_creation_time(match) is None:
                return Inconclusive(f"{match['id']}, which has no date, may be older")
            return Confirmed({"batch": {"id": match["id"]}}, object_id=match["id"])
        return match

    return read_outcome


def _select_batches_paying_same(
    body: JSONObject, rows: Sequence[dict[str, JSON]], write: InDoubtWrite
) -> Generator[Step, Any, Inconclusive | tuple[list[dict[str, JSON]], set[JSON]]]:
    """Returns the batches with the sent payments, and the ids of those that have the memos too."""
    matching_rows: list[dict[str, JSON]] = []
    exact_ids: set[JSON] = set()
    for row in rows:
        # A batch that another write claims cannot be the result of this one.
        if row["id"] in write.claimed_ids:
            continue
        summary = yield from fetch_summary_if_exists(row["id"])
        # Another replica may lack what the list shows; as absent, it would be created again.
        if summary is None:
            return Inconclusive(f"the service lists {row['id']}, but does not show it")
        batch = extract_batch(summary)
        if not is_created_after_write(batch, write):
            continue
        if (payments := find_all_payments(summary)) is None or not all(
            map(has_recipient, payments)
        ):
            return Inconclusive(f"the service does not show the payments of {row['id']}")
        if _has_same_payments(body, summary, is_same_payment):
            matching_rows.append({**row, **drop_nulls(batch), "id": row["id"]})
            if _has_same_payments(body, summary, is_exact_payment):
                exact_ids.add(row["id"])
        elif _has_same_payments(body, summary, is_possible_payment):
            return Inconclusive(f"{OTHER_CURRENCY_REASON}, in {row['id']}")
    return matching_rows, exact_ids


def _confirm_operator_named_batch(write: InDoubtWrite, body: JSONObject) -> OutcomeReads:
    """Checks the batch that an operator named, which must not visibly pay something else."""
    batch_id = str(write.operator_object_id)
    summary = yield from fetch_summary_if_exists(batch_id)
    if summary is None:
        return Inconclusive(f"the service has no batch {batch_id}, named by the operator")
    batch, payments = extract_batch(summary), find_all_payments(summary)
    if not is_created_after_write(batch, write):
        return Inconclusive(build_older_object_reason(batch_id))
    if payments is None:  # a part of them, or none
        is_other = has_more_payments(batch, len(body["payments"]))
    else:
        has_payees = all(map(has_recipient, payments))
        is_other = has_payees and not _has_same_payments(body, summary, is_possible_payment)
        is_other = is_other or len(payments) != len(body["payments"])
    if is_other or batch.get("currency") not in (None, body.get("currency")):
        return Inconclusive(f"{batch_id}, named by the operator, pays something else")
    return Confirmed({"batch": {"id": batch_id}}, object_id=batch_id)


def build_batch_creation_call(
    body: JSONObject, field_map: Mapping[str, str] = MappingProxyType({})
) -> Call:
    match_fields = {**body, "payments": map_rows(select_payment_match_fields, body["payments"])}
    rule = build_batch_creation_outcome_rule(body)
    return Call(
        "POST", "/batches", body, field_map=field_map, reconcile=rule, match_fields=match_fields
    )


def _is_possible_batch(body: JSONObject, row: JSONObject) -> bool:
    """Whether a listed batch may be the one sent. Fields the list does not show count as equal."""
    count = len(body["payments"])
    return (
        row.get("currency") in (None, body.get("currency"))
        and parse_count_or_default(row.get("totalPayments"), count) == count
        and (
            "description" not in row
            or is_shown_value_compatible(body.get("description"), row["description"])
        )
    )


def _has_same_payments(body: JSONObject, summary: JSON, is_match: PaymentTest) -> bool:
    rows = extract_payments(summary)
    shown = ShownPayments(rows, body.get("currency"))
    return len(rows) == len(body["payments"]) and all(
        shown.take(payment, is_match) for payment in body["payments"]
    )
