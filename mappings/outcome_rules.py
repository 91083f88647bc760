"""Outcome rules: how to find out, by reading, whether a write without a response was executed.

Each function builds the rule of one call: a generator that reads from the service and returns
``Confirmed``, ``Absent`` or ``Inconclusive``. An object matches if it has all sent values that the
service is known to show unchanged (``select_…_match_fields``). If there are several matches or
several identical writes in doubt, the remaining values must agree too. More matches than such
writes prove nothing: ``Inconclusive``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mappings.batch_views import EDITABLE_STATUSES, derive_batch_status
from mappings.current import SUMMARY_PATH
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
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
from mappings.matching import Entry, Payment, list_entry_ids
from mappings.outcome_matching import (
    NO_PAYMENT_IDS_REASON,
    JSONObject,
    ShownPayments,
    confirm_operator_named_object,
    extract_payee_id,
    fetch_if_exists,
    has_payment_ids,
    has_recipient,
    has_same_memo,
    is_exact_payment,
    is_possible_payment,
    is_same_payment,
    is_shown_value_compatible,
    select_created_object,
)
from mappings.payloads import (
    extract_batch,
    extract_payment,
    extract_payments,
    find_all_payments,
    find_payments,
)

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


def build_payment_add_outcome_rule(
    upstream_id: str,
    body: JSONObject,
    currency: JSON,
    ids_before: Iterable[str],
    load_other_adds: Callable[[], Generator[Step, Any, list[JSONObject]]],
    *,
    list_hidden_entries: Callable[[], Iterable[Entry]] = tuple,
    has_known_payments: bool = True,
) -> OutcomeRule:
    """Builds the rule of a payment add; it reads GET /batch/:id/summary.

    Of a payment that an operator has named and that the summary need not show, also GET /payments/:id.

    ``load_other_adds`` returns the bodies of other adds that may have created the payment found;
    ``list_hidden_entries`` the payments added before that the service did not show yet;
    ``has_known_payments`` says whether these and ``ids_before`` are all payments of the batch.
    """
    known_ids = frozenset(ids_before)

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if (summary := (yield from fetch_summary_if_exists(upstream_id))) is None:
            return _determine_outcome_without_batch(write)
        named_id = write.operator_object_id
        shown_payments = find_payments(summary, allows_page=True) or ()
        rows = [row for row in shown_payments if row.get("id") not in known_ids]
        listed_ids = {row.get("id") for row in shown_payments}
        is_complete = find_all_payments(summary) is not None and has_payment_ids(summary)
        if not (named_id is None or is_complete or named_id in known_ids | listed_ids):
            rows += yield from _fetch_payment_of_batch(named_id, upstream_id)
        # The named one first, so that of equal payments it is dropped last.
        rows.sort(key=lambda row: row.get("id") != named_id)
        new_payments = _drop_hidden_payments(rows, list_hidden_entries(), currency)
        if named_id is not None:
            return _confirm_operator_named_payment(named_id, body, new_payments, currency)
        if not has_payment_ids(summary):
            return Inconclusive(NO_PAYMENT_IDS_REASON)
        # Loaded after the summary: every payment in it comes from an add that is stored by then.
        unclaimed_payments = yield from load_other_adds()
        if find_all_payments(summary) is None or not all(map(has_recipient, new_payments)):
            return Inconclusive("the service does not show the recipients of the batch's payments")
        unclaimed = [row for row in new_payments if row.get("id") not in write.claimed_ids]
        is_of_other_add = {
            row["id"]: _is_payment_of_other_add(body, row, unclaimed_payments, currency)
            for row in unclaimed
        }
        matching_payments = [
            row
            for row in unclaimed
            if is_same_payment(body, row, currency) and not is_of_other_add[row["id"]]
        ]
        is_open = not has_known_payments and bool(matching_payments)
        if is_open or any(is_of_other_add[row["id"]] is None for row in matching_payments):
            return Inconclusive(OTHER_ADD_REASON)
        match = select_created_object(
            matching_payments,
            write,
            is_dated=False,
            is_full_match=lambda row: has_same_memo(body, row),
        )
        if isinstance(match, dict):
            return Confirmed({"payment": match}, object_id=match.get("id"))
        # A new payment to the recipient in another currency may be this one, and so may one of
        # another amount, if somebody has edited it since: nothing is proved.
        payee_id = extract_payee_id(body)
        if isinstance(match, Absent) and any(
            extract_payee_id(row) == payee_id and not is_of_other_add[row["id"]]
            for row in unclaimed
        ):
            return Inconclusive(OTHER_AMOUNT_REASON)
        return match

    return read_outcome


def _determine_outcome_without_batch(write: InDoubtWrite) -> Absent | Inconclusive:
    """Determines the outcome of a change of a batch that the service does not show."""
    # It had the batch before the write, and another replica may lack it for a while.
    if write.is_recent:
        return Inconclusive("the service does not show the batch")
    return Absent()  # the batch was deleted, and pays nobody


def _fetch_payment_of_batch(
    payment_id: str, upstream_id: str
) -> Generator[Step, Any, list[Payment]]:
    """Calls GET /payments/:id for a payment that the summary need not show; empty if it is another's."""
    payment = extract_payment((yield from fetch_if_exists(f"/payments/{payment_id}")) or {})
    batch = payment.get("batch")
    batch_id = batch.get("id") if isinstance(batch, dict) else None
    return [payment] if batch_id in (None, upstream_id) else []


def _drop_hidden_payments(
    rows: Iterable[Payment], hidden_entries: Iterable[Entry], currency: JSON
) -> list[Payment]:
    """Drops the payments of earlier changes, which the service did not show when a write was sent."""
    entries = [*hidden_entries]
    ids = {id_ for entry in entries for id_ in list_entry_ids(entry)}
    shown = ShownPayments((row for row in rows if row.get("id") not in ids), currency)
    for entry in entries:
        if not list_entry_ids(entry):  # of a service that answers without ids
            shown.take(entry, is_exact_payment)
    return shown.remaining


def _confirm_operator_named_payment(
    payment_id: str,
    body: JSONObject,
    new_payments: Iterable[JSONObject],
    currency: JSON,
) -> Confirmed | Inconclusive:
    """Checks the payment that an operator named: it must be new and must not visibly differ."""
    payment = next((dict(row) for row in new_payments if row.get("id") == payment_id), None)
    is_match = payment is not None and (
        not has_recipient(payment) or is_possible_payment(body, payment, currency)
    )
    return confirm_operator_named_object(payment_id, "payment", payment if is_match else None)


def _is_payment_of_other_add(
    body: JSONObject, shown: JSONObject, other_bodies: Iterable[JSONObject], currency: JSON
) -> bool | None:
    """Whether a payment was created by another add than that of ``body``; None if undecidable.

    Adds whose payment has no known id are told apart by the memo, if the service shows one.
    """
    memo, answers = shown.get("memo"), set[bool | None]()
    is_possibly_mine = is_possible_payment(body, shown, currency)
    is_mine = is_shown_value_compatible(body.get("memo"), memo)
    for other_body in other_bodies:
        if id_ := other_body.get("id"):
            answers.add(id_ == shown.get("id"))
        elif is_possible_payment(other_body, shown, currency):
            is_other = is_shown_value_compatible(other_body.get("memo"), memo)
            has_telling_memo = memo and is_other != is_mine
            answers.add(not is_possibly_mine or (is_other if has_telling_memo else None))
    if True in answers:
        return True
    return None if None in answers else False


def build_batch_edit_outcome_rule(
    upstream_id: str,
    payments: Sequence[JSONObject],
    currency: JSON,
    *,
    additions: Sequence[JSONObject] = (),
    build_changes: Callable[[], Mapping[str, JSONObject]] = dict,
    removed_ids: Iterable[JSON] = (),
    batch_fields: JSONObject = MappingProxyType({}),
    list_hidden_entries: Callable[[], Iterable[Entry]] = tuple,
    load_signed_adds: Callable[[], Generator[Step, Any, list[JSONObject]]] | None = None,
    seen_update_time: JSON = None,
    has_known_payments: bool = True,
) -> OutcomeRule:
    """Builds the rule of a batch edit; it reads GET /batch/:id/summary.

    It compares the summary with ``payments``, the batch's payments before the edit, and
    ``list_hidden_entries()``, those among them that the service did not show yet;
    ``load_signed_adds`` returns those that signed requests had added, as far as their ids are
    unknown.

    ``build_changes``, which is called only if the rule runs, and ``removed_ids`` use the clients' ids;
    ``batch_fields`` are the changed fields of the batch itself. All changes together confirm the
    edit; if only some can be seen, the rule is inconclusive. ``seen_update_time`` is the batch's
    ``updatedAt`` before the edit; ``has_known_payments`` says whether ``payments`` are all.
    """

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if (summary := (yield from fetch_summary_if_exists(upstream_id))) is None:
            return _determine_outcome_without_batch(write)
        # Keyed by the service's ids, because a batch that was a draft has payments with other ids.
        old_by_id = {str(row["upstream"]): row for row in payments if row.get("upstream")}
        shown_by_id = {str(row.get("id")): row for row in extract_payments(summary)}
        upstream_ids = {row["id"]: id_ for id_, row in old_by_id.items()}
        evidence = [
            id_ in upstream_ids and upstream_ids[id_] not in shown_by_id for id_ in removed_ids
        ]
        evidence += _list_change_evidence(build_changes(), old_by_id, shown_by_id, currency)
        # A summary from before an earlier change may lack the payment, or show the same amount.
        needs_newer = write.is_recent and any(evidence)
        if reason := _find_unusable_reason(summary, seen_update_time, needs_newer=needs_newer):
            return Inconclusive(reason)
        new_ids = shown_by_id.keys() - old_by_id.keys() - write.claimed_ids
        new_rows = [row for id_, row in shown_by_id.items() if id_ in new_ids]
        new_rows = _drop_hidden_payments(new_rows, list_hidden_entries(), currency)
        if additions and not all(map(has_recipient, new_rows)):
            return Inconclusive("the service does not show the recipients of the batch's payments")
        new_payments = ShownPayments(new_rows, currency)
        signed_adds = (yield from load_signed_adds()) if additions and load_signed_adds else ()
        signed_rows = [*filter(None, map(new_payments.take_added, signed_adds))]
        other_rows = new_payments.remaining
        # Taken: of equal additions each needs a payment of its own.
        added = [new_payments.take(body, is_same_payment) is not None for body in additions]
        if any(added) and not has_known_payments:
            return Inconclusive(OTHER_ADD_REASON)
        evidence += added
        batch = extract_batch(summary)
        shown_names = batch_fields.keys() & batch.keys()
        evidence += [
            is_shown_value_compatible(batch_fields[name], batch[name]) for name in shown_names
        ]
        if evidence and all(evidence):
            return Confirmed({"object": "updated"})
        if any(evidence):
            # A retry would add the payments again.
            return Inconclusive("only some of the changes can be seen", any(added))
        if any(is_possible_payment(a, row, currency) for row in signed_rows for a in additions):
            return Inconclusive(OTHER_ADD_REASON)
        # As of an add: a new payment to the recipient may be one that was edited since.
        payee_ids = {extract_payee_id(body) for body in additions}
        if any(extract_payee_id(row) in payee_ids for row in other_rows):
            return Inconclusive(OTHER_AMOUNT_REASON)
        return Absent(is_old_state_shown=bool(evidence))

    return read_outcome


def _find_unusable_reason(
    summary: JSON, seen_update_time: JSON, *, needs_newer: bool
) -> str | None:
    """Finds out why a summary shows nothing of an edit; None if it may."""
    if find_all_payments(summary) is None:
        return "the service does not show the batch's payments"
    if not has_payment_ids(summary):
        return NO_PAYMENT_IDS_REASON
    # That of another replica may lack a payment that was just added, as if it had been removed.
    shown_at = parse_instant_or_earliest(extract_batch(summary).get("updatedAt"))
    seen_at = parse_instant_or_earliest(seen_update_time)
    if EARLIEST_INSTANT < shown_at < seen_at or (needs_newer and shown_at <= seen_at):
        return "the service may show the batch as it was before the request"
    return None


def _list_change_evidence(
    changes: Mapping[str, JSONObject],
    old_by_id: Mapping[str, JSONObject],
    shown_by_id: Mapping[str, JSONObject],
    currency: JSON,
) -> list[bool]:
    """Returns for each change of an amount whether the service shows it, and shown new memos."""
    evidence = []
    for id_, row in old_by_id.items():
        body, shown = changes.get(row["id"]), shown_by_id.get(id_)
        # A payment that had the new amount before the edit proves nothing.
        if body is not None and not _has_amount_of_change(body, row, currency):
            evidence.append(shown is not None and _has_amount_of_change(body, shown, currency))
        # A memo that is not shown proves nothing either: a service need not store any.
        if body and shown and (memo := body.get("memo")) and row.get("memo") != memo:
            evidence += [True] if shown.get("memo") == memo else []
    return evidence


def _has_amount_of_change(body: JSONObject, payment: JSONObject, currency: JSON) -> bool:
    """Whether a payment has the amount of a change; True if the change sets none."""
    if not (body.get("sourceAmount") or body.get("targetAmount")):
        return True
    return is_same_payment({**body, "recipient": payment.get("recipient")}, payment, currency)


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
