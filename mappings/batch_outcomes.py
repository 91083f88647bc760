"""Outcome rules of batches: how to find out, by reading, whether a write was executed.

Each rule is that of one call: a generator that reads from the service and returns
``Confirmed``, ``Absent`` or ``Inconclusive``. An object matches if it has all sent values that the
service is known to show unchanged (``select_…_match_fields``). If there are several matches or
several identical writes in doubt, the remaining values must agree too. More matches than such
writes prove nothing: ``Inconclusive``.
"""

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
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
    MayExist,
    OutcomeReads,
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
    fetch_if_exists,
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
from mappings.paging import parse_count_or_default
from mappings.payloads import extract_batch, extract_payments, find_all_payments, has_more_payments

OTHER_CURRENCY_REASON = "the service shows no amount in the requested currency"
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
            if is_started and parse_creation_time(match.get("createdAt")) is None:
                return Inconclusive(f"{match['id']}, which has no date, may be older")
            return Confirmed({"batch": {"id": match["id"]}}, object_id=match["id"])
        return match

    return read_outcome


def _select_batches_paying_same(
    body: JSONObject, rows: Sequence[dict[str, JSON]], write: InDoubtWrite
) -> Generator[Step, Any, Inconclusive | tuple[list[dict[str, JSON]], set[JSON]]]:
    """Returns the batches with the sent payments, and the ids of those that agree in all else."""
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
            is_exact = _has_same_payments(body, summary, is_exact_payment)
            if is_exact and _has_compatible_description(body, row):
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
        # A service may describe a batch itself that was sent without a description.
        and (not body.get("description") or _has_compatible_description(body, row))
    )


def _has_compatible_description(body: JSONObject, row: JSONObject) -> bool:
    return "description" not in row or is_shown_value_compatible(
        body.get("description"), row["description"]
    )


def _has_same_payments(body: JSONObject, summary: JSON, is_match: PaymentTest) -> bool:
    rows = extract_payments(summary)
    shown = ShownPayments(rows, body.get("currency"))
    return len(rows) == len(body["payments"]) and all(
        shown.take(payment, is_match) for payment in body["payments"]
    )


def build_batch_deletion_call(upstream_id: str) -> Call:
    """Builds the call of DELETE /batches/:id; its rule reads GET /batch/:id/summary."""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        summary = yield from fetch_summary_if_exists(upstream_id)
        # Some services still show a deleted batch, so that an operator may know better.
        status = "deleted" if summary is None else extract_batch(summary).get("status")
        is_deleted = status in ("deleted", "archived")
        return Confirmed({"object": "deleted"}) if is_deleted else Absent()

    path = f"/batches/{upstream_id}"
    return Call("DELETE", path, probe_ids=(upstream_id,), reconcile=read_outcome)


def build_quote_call(upstream_id: str, previous_expiry: JSON) -> Call:
    """Builds the call of a quote; its rule reads GET /batch/:id/summary.

    ``previous_expiry`` is the ``quoteExpiredAt`` before the call.

    A quote that cannot be seen is absent: it may be repeated until processing starts. An operator
    may know better, because services need not show the time.
    """

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        batch = extract_batch((yield Call("GET", SUMMARY_PATH.format(id=upstream_id))))
        expiry = batch.get("quoteExpiredAt")
        return Confirmed({"batch": batch}) if expiry and expiry != previous_expiry else Absent()

    return Call("POST", f"/batches/{upstream_id}/generate-quote", reconcile=read_outcome)


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
