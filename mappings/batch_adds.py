"""Payments that are being added to batches at the service, and how their outcome is found out.

While an add is in doubt, the batch is unlocked only for other adds (contract, section 7, Blocking).
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from mappings import money
from mappings.batch_locks import (
    ADDS,
    MAX_LOCK_WAITS,
    SIGNED_CHANGES_KIND,
    acquire_batch_lock,
    build_finished_change_facts,
    build_unchanged_batch_condition,
    identify_lock,
    is_open_to_adds,
    list_open_signed_changes,
)
from mappings.batch_outcomes import (
    OTHER_ADD_REASON,
    OTHER_AMOUNT_REASON,
    determine_outcome_without_batch,
    fetch_summary_if_exists,
)
from mappings.batch_reads import build_entries_from_batch, is_recent
from mappings.batch_views import SIGNED_ADDS, Batch
from mappings.change_releases import build_added_payment_record
from mappings.dates import format_timestamp
from mappings.effects import (
    JSON,
    Absent,
    AwaitFacts,
    CompareAndSet,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    LoadFacts,
    OutcomeReads,
    OutcomeRule,
    Request,
    Step,
    SubFlow,
)
from mappings.errors import OTHER_IN_DOUBT
from mappings.failures import Conflict, Halted, Unknown
from mappings.matching import Entry, Payment, is_paired_by_id
from mappings.outcome_matching import (
    NO_PAYMENT_IDS_REASON,
    OLDER_VIEW_REASON,
    JSONObject,
    confirm_operator_named_object,
    extract_payee_id,
    fetch_if_exists,
    has_payment_ids,
    has_recipient,
    has_same_memo,
    is_possible_payment,
    is_same_payment,
    is_shown_value_compatible,
    is_view_older,
    select_created_object,
)
from mappings.payloads import extract_batch, extract_payment, find_all_payments, find_payments
from mappings.unidentified_payments import drop_hidden_payments

OTHER_CHANGES_REASON = "other changes of the batch are under way"

_IS_ADDED = "is_added"
"""Marks an add that was executed, but whose payment the response did not identify."""


@dataclass(frozen=True, slots=True)
class Add:
    """A payment that is being added to a batch, which is locked for it."""

    batch: Batch
    request: Request
    body: Mapping[str, JSON]

    @property
    def name(self) -> str:
        return self.request.seed

    def load_bodies_of_other_adds(self) -> Generator[Step, Any, list[JSON]]:
        """Loads the bodies of other adds: under way, in doubt, or answered without an id.

        Also those of clients' signed requests, unless the batch showed them when it was loaded.
        """
        open_changes = yield LoadFacts(SIGNED_CHANGES_KIND, self.batch.id)
        signed_adds = yield LoadFacts(SIGNED_ADDS, self.batch.id)
        facts = yield LoadFacts("batch", self.batch.id)
        signed_bodies = [
            *filter(None, list_open_signed_changes(open_changes)),
            *(
                added
                for name, added in signed_adds.items()
                # One whose id is known is not taken for another.
                if name not in self.batch.signed_changes
                or added.get("id")
                or is_recent(added.get("changed_at"), self.request.now)
            ),
        ]
        return [
            *(body for name, body in (facts.get(ADDS) or {}).items() if name != self.name),
            # Their memos are not recorded, so they must not tell them apart.
            *({**body, "memo": self.body.get("memo")} for body in signed_bodies),
        ]

    @property
    def in_doubt_change(self) -> CompareAndSet:
        """The change that unlocks the batch for other adds while this one is in doubt."""
        facts = build_finished_change_facts(self.batch.facts, "sent")
        # This is conditional: if another request has acquired the lock, it must keep it.
        own_lock = {"phase": "editing", "since": identify_lock(self.request)}
        return CompareAndSet("batch", self.batch.id, facts, expected=own_lock)


def lock_batch_for_add(add: Add) -> SubFlow:
    """Locks the batch to add a payment; raises Conflict if it was changed since it was loaded."""
    adds = add.batch.facts.get(ADDS) or {}
    # One that is under way, which the lock shows, is waited for.
    is_in_doubt = bool(add.batch.lock) or is_open_to_adds(add.batch.facts)
    # An identical add in doubt may have been executed: this one could pay a second time.
    if is_in_doubt and _parse_add_amount(add.body) in map(_parse_add_amount, adds.values()):
        raise Halted(OTHER_IN_DOUBT, retry_after=1)
    # Recorded with the lock and before the call, so that no add is missed after a crash.
    facts = {ADDS: {**adds, add.name: add.body}}
    yield from acquire_batch_lock(
        add.batch, "editing", add.request, is_unlocked=is_open_to_adds, facts=facts
    )


def _parse_add_amount(body: Mapping[str, JSON]) -> dict[str, Any]:
    """Returns the body of an add to compare: 12 and 12.00 are the same amount."""
    return {**body, "amount": money.parse_amount(body.get("amount"))}


def finish_add(add: Add, entry: Entry | None = None) -> SubFlow:
    """Unlocks the batch after an add, even if it was in doubt before.

    Records the payment, if it was added (``entry``).
    """
    for _ in range(MAX_LOCK_WAITS):
        # Other adds change the batch meanwhile, and an operator may close one without the lock.
        with suppress(Conflict):
            return (yield from _record_finished_add(add, entry))
    raise Unknown(OTHER_CHANGES_REASON)


def _record_finished_add(add: Add, entry: Entry | None) -> SubFlow:
    batch, id_ = add.batch, add.batch.id
    facts = yield LoadFacts("batch", id_)
    is_locked = facts.get("since") == identify_lock(add.request)
    if not is_locked and not is_open_to_adds(facts):  # it was unlocked during the doubt
        try:
            facts = yield AwaitFacts("batch", id_, condition=is_open_to_adds)
        except Conflict:
            raise Unknown(OTHER_CHANGES_REASON) from None
    adds = {name: body for name, body in facts.get(ADDS, {}).items() if name != add.name}
    # Unconditional in the usual case, because that needs no commit of its own.
    expected = {} if is_locked else build_unchanged_batch_condition(facts)
    if adds or not is_locked:
        expected[ADDS] = facts.get(ADDS)
    if entry is not None and not entry.get("upstream"):
        adds[add.name] = {**add.body, _IS_ADDED: True}
    # Executed adds are stored only while another is in doubt.
    is_any_open = any(not body.get(_IS_ADDED) for body in adds.values())
    new_facts = build_finished_change_facts(facts, "sent") | {ADDS: adds if is_any_open else None}
    if entry is None:
        # No other request has had the lock, so their loaded batch is current: they need no conflict.
        if is_locked:
            del new_facts["version"]
        yield CompareAndSet("batch", id_, new_facts, expected)
        return
    if not is_locked:
        entries = (yield LoadFacts("payments", id_)).get("entries", [])
    # Usually: then not all payments of the batch have to be merged to add one.
    elif batch.rows is not None and is_paired_by_id(batch.rows, batch.entries):
        entries = batch.entries
    else:
        entries = build_entries_from_batch(batch, add.request.now)
    new_facts |= dict.fromkeys(("updatedAt", "changed_at"), format_timestamp(add.request.now))
    record = build_added_payment_record(id_, new_facts, entries, entry)
    yield structs.replace(record, expected=expected)


# The outcome of an add


def build_payment_add_outcome_rule(add: Add) -> OutcomeRule:
    """Builds the rule of a payment add; it reads GET /batch/:id/summary.

    Of a payment that an operator has named and that the summary need not show, also GET /payments/:id.
    """
    batch, body = add.batch, add.body

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if (summary := (yield from fetch_summary_if_exists(batch.upstream_id))) is None:
            return determine_outcome_without_batch(write)
        currency, named_id = batch.currency, write.operator_object_id
        new_payments = yield from _list_new_payments(add, summary, named_id)
        if named_id is not None:
            return _confirm_operator_named_payment(named_id, body, new_payments, currency)
        if not has_payment_ids(summary):
            return Inconclusive(NO_PAYMENT_IDS_REASON)
        # It may have a payment that was removed before the add.
        if is_view_older(extract_batch(summary), batch.service_fields):
            return Inconclusive(OLDER_VIEW_REASON)
        # Loaded after the summary: every payment in it comes from an add that is stored by then.
        unclaimed_payments = yield from add.load_bodies_of_other_adds()
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
        is_open = not batch.has_known_payments and bool(matching_payments)
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


def _list_new_payments(
    add: Add, summary: JSON, named_id: str | None
) -> Generator[Step, Any, list[Payment]]:
    """Lists the payments that the batch did not have before the add, and the named one."""
    batch = add.batch
    known_ids = {payment["upstream"] for payment in batch.payments}
    shown_payments = find_payments(summary, allows_page=True) or ()
    rows = [row for row in shown_payments if row.get("id") not in known_ids]
    listed_ids = {row.get("id") for row in shown_payments}
    is_complete = find_all_payments(summary) is not None and has_payment_ids(summary)
    if not (named_id is None or is_complete or named_id in known_ids | listed_ids):
        rows += yield from _fetch_payment_of_batch(named_id, batch.upstream_id)
    # The named one first, so that of equal payments it is dropped last.
    rows.sort(key=lambda row: row.get("id") != named_id)
    return drop_hidden_payments(rows, batch, add.request.now)


def _fetch_payment_of_batch(
    payment_id: str, upstream_id: str
) -> Generator[Step, Any, list[Payment]]:
    """Calls GET /payments/:id for a payment that the summary need not show; empty if it is another's."""
    payment = extract_payment((yield from fetch_if_exists(f"/payments/{payment_id}")) or {})
    batch = payment.get("batch")
    batch_id = batch.get("id") if isinstance(batch, dict) else None
    return [payment] if batch_id in (None, upstream_id) else []


def _confirm_operator_named_payment(
    payment_id: str, body: JSONObject, new_payments: Iterable[JSONObject], currency: JSON
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
