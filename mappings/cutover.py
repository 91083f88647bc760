"""Imports the data that only the legacy service has, before the cutover.

Each flow takes an object of the legacy service, finds the same object at the current service with
reads, and returns the facts to store about it. Ids may differ: an object is found by its id, or
else by a combination of fields that only one object has. An ambiguous object is not mapped.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappings import money
from mappings.batch_bodies import select_listed_recipient_fields
from mappings.batch_outcomes import fetch_summary_if_exists
from mappings.batch_views import (
    EDITABLE_STATUSES,
    LEGACY_STATUSES,
    build_batch,
    derive_batch_status,
)
from mappings.effects import JSON, Answer, Call, Flow, SubFlow
from mappings.failures import NoSuchOperation, Refused
from mappings.matching import Entry, extract_recipient_id
from mappings.objects import (
    DEFAULT_HOLD,
    UPSTREAM_STATUS,
    choose_legacy_recipient_status,
    is_deleted_for_clients,
)
from mappings.paging import load_all_rows
from mappings.payloads import extract_batch, extract_payments
from mappings.recipient_outcomes import fetch_recipient_if_exists

LegacyObject = Mapping[str, JSON]

IMPORTED_FACTS = ("status", "autoswitch", "holdup")
"""Facts of a recipient that the current service has no place for."""


def _build_match_answer(current: str, facts: LegacyObject, **extra: JSON) -> Answer:
    return Answer({"current": current, "facts": facts, "why": None, **extra})


def _build_mismatch_answer(reason: str) -> Answer:
    return Answer({"current": None, "facts": {}, "why": reason})


# Recipients


def match_legacy_recipient(legacy_recipient: LegacyObject) -> Flow:
    """Finds a legacy recipient: GET /recipients/:id, else GET /recipients?email=."""
    recipient = yield from _find_recipient_at_current_service(legacy_recipient)
    if recipient is None:
        return _build_mismatch_answer(
            "the current service has no recipient with this id, and not exactly one that matches"
        )
    word, status = legacy_recipient.get("status"), recipient.get("status")
    facts: dict[str, JSON] = {"status": word if word in UPSTREAM_STATUS else None}
    payout = legacy_recipient.get("payout") or {}
    for name in ("autoswitch", "holdup"):
        value = payout.get(name)
        hold = {**DEFAULT_HOLD, **(value if isinstance(value, dict) else {})}
        # None deletes a stored hold, so that a repeated import follows the legacy service.
        facts[name] = None if hold == DEFAULT_HOLD else hold
    if choose_legacy_recipient_status(recipient, facts) != word:
        reason = f"it is {word} at the legacy service, but {status} at the current one"
        return _build_mismatch_answer(reason)
    return _build_match_answer(str(recipient["id"]), facts)


def _find_recipient_at_current_service(legacy_recipient: LegacyObject) -> SubFlow:
    recipient = yield from fetch_recipient_if_exists(legacy_recipient["id"])
    if recipient is not None:
        # The fields are not compared: a recipient with the same id is certainly the same one.
        return None if is_deleted_for_clients(recipient, {}) else recipient
    query = {"email": str(legacy_recipient.get("email"))}
    rows = (yield Call("GET", "/recipients", query=query)).get("recipients")
    # The address alone is not enough: two recipients may share one.
    compared_fields = ("email", "createdAt", "referenceId")
    candidates = [
        row
        for row in rows or []
        if not is_deleted_for_clients(row, {})
        and all(row.get(name) == legacy_recipient.get(name) for name in compared_fields)
    ]
    # A wrong match would attach a client's id to another person, so an ambiguous match is none.
    return candidates[0] if len(candidates) == 1 else None


# Batches


def load_listed_batches() -> Flow:
    """Lists the service's batches with GET /batches; ``batches`` is None if it lacks that."""
    try:
        rows = yield from load_all_rows("/batches", "batches", probe_ids=())
    except NoSuchOperation:
        return Answer({"batches": None})
    return Answer({"batches": [row for row in rows.values() if row.get("id")]})


def match_legacy_batch(
    legacy_batch: LegacyObject,
    payments: Sequence[LegacyObject],
    current_ids: Mapping[str, str],
    current_batches: Sequence[LegacyObject] | None,
) -> Flow:
    """Finds a legacy batch: GET /batch/:id/summary by its own id, else for each candidate.

    ``current_ids`` maps legacy ids to differing current ids. Candidates come from the ``listed``
    batches of the service, or from GET /recipients/:id/payments if it cannot list batches.
    """
    batch = _LegacyBatch(legacy_batch, payments, current_ids)
    own_id = batch.find_current_id(legacy_batch["id"])
    if (summary := (yield from fetch_summary_if_exists(own_id))) is not None:
        return batch.match_with_summary(own_id, summary)
    created_at = legacy_batch.get("createdAt")
    if current_batches is None:
        candidate_ids = yield from batch.list_candidate_ids()
    else:
        rows = [row for row in current_batches if row.get("createdAt") == created_at]
        candidate_ids = [str(row["id"]) for row in rows]
    matches = []
    for id_ in candidate_ids:
        summary = yield from fetch_summary_if_exists(id_)
        if summary is None or batch.pair_payments(summary) is None:
            continue
        if extract_batch(summary).get("description") in (None, legacy_batch.get("description")):
            matches.append((id_, summary))
    # With a wrong match, the client would start, edit or delete the wrong batch.
    if len(matches) != 1:
        subject = "several batches" if matches else "no batch"
        reason = f"{subject} of the current service could be this one; see `ids import`"
        return _build_mismatch_answer(reason)
    return batch.match_with_summary(*matches[0])


@dataclass(frozen=True, slots=True)
class _LegacyBatch:
    """A legacy batch with its payments; ``current_ids`` maps legacy ids to differing current ids."""

    fields: LegacyObject
    payments: Sequence[LegacyObject]
    current_ids: Mapping[str, str]

    def find_current_id(self, legacy_id: JSON) -> str:
        return self.current_ids.get(str(legacy_id), str(legacy_id))

    def list_candidate_ids(self) -> SubFlow:
        """Lists the batches with the same creation time that pay the batch's first recipient."""
        if not self.payments:
            return []
        payee = self.find_current_id(extract_recipient_id(self.payments[0]))
        try:
            rows = yield from load_all_rows(f"/recipients/{payee}/payments", "payments")
        except Refused as refused:
            if not refused.is_not_found:
                raise
            return []
        batches = (payment.get("batch") or {} for payment in rows.values())
        created_at = self.fields.get("createdAt")
        ids = (
            each["id"] for each in batches if each.get("id") and each.get("createdAt") == created_at
        )
        return list(dict.fromkeys(map(str, ids)))

    def match_with_summary(self, id_: str, summary: JSON) -> Answer:
        payment_pairs = self.pair_payments(summary)
        if payment_pairs is None:
            return _build_mismatch_answer("it has other payments at the current service")
        status = self.fields.get("status")
        current_status = derive_batch_status(extract_batch(summary).get)
        # Only "editable or not" is compared: the services' words for stages of processing differ.
        is_different = (status in EDITABLE_STATUSES) != (current_status in EDITABLE_STATUSES)
        if status in LEGACY_STATUSES and current_status is not None and is_different:
            return _build_mismatch_answer(
                f"it is {status} at the legacy service, but {current_status} at the current one"
            )
        names = ("currency", "description", "createdAt", "updatedAt", "completedAt")
        facts: dict[str, JSON] = {
            "phase": "sent",
            "upstream": id_,
            "started": self.fields.get("sentAt"),
            **{name: self.fields.get(name) for name in names},
        }
        entries = [
            self._reconstruct_entry(payment, current_id) for payment, current_id in payment_pairs
        ]
        redirected_payments = {
            str(payment["id"]): current_id
            for payment, current_id in payment_pairs
            if payment["id"] != current_id
        }
        batch = build_batch(id_, facts, entries, extract_batch(summary), extract_payments(summary))
        return _build_match_answer(
            id_, facts, entries=entries, payments=redirected_payments, is_open=batch.is_editable
        )

    def pair_payments(self, summary: JSON) -> list[tuple[LegacyObject, str]] | None:
        """Pairs each payment with its current id; identical payments are paired in listing order.

        Returns None if the summary does not show the same payments.
        """
        current_payments = extract_payments(summary)
        shown_ids = {str(payment.get("id")) for payment in current_payments}
        unmatched: dict[tuple[JSON, ...], list[str]] = defaultdict(list)
        # Payments that are found by their id must not be paired with others that look like them.
        known_ids = {self.find_current_id(payment["id"]) for payment in self.payments}
        for shown in current_payments:
            if str(shown.get("id")) not in known_ids:
                key = _build_payment_key(shown, extract_recipient_id(shown))
                unmatched[key].append(str(shown.get("id")))
        pairs = []
        for payment in self.payments:
            own_id = self.find_current_id(payment["id"])
            payee = self.find_current_id(extract_recipient_id(payment))
            candidates = unmatched[_build_payment_key(payment, payee)]
            if own_id not in shown_ids and not candidates:
                return None
            pairs.append((payment, own_id if own_id in shown_ids else candidates.pop(0)))
        return pairs if len(pairs) == len(current_payments) else None

    def _reconstruct_entry(self, payment: LegacyObject, current_id: str) -> Entry:
        """Reconstructs the entry that was requested for a payment, as far as that is possible."""
        recipient = {
            **select_listed_recipient_fields(payment.get("recipient") or {}),
            "id": self.find_current_id(extract_recipient_id(payment)),
        }
        # Answers take the status from the current service, so a stored copy would only become stale.
        recipient.pop("status", None)
        names = ("sourceAmount", "memo", "createdAt", "updatedAt")
        fields = {name: payment[name] for name in names if payment.get(name) not in (None, "")}
        return {"id": current_id, "recipient": recipient, **fields}


def _build_payment_key(payment: LegacyObject, recipient_id: JSON) -> tuple[JSON, ...]:
    """Builds a key without the target amount, because a quote changes it."""
    source = money.parse_amount(payment.get("sourceAmount"))
    return str(recipient_id), source, payment.get("targetCurrency")
