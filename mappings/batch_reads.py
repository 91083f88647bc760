"""Loads batches: the stored state, the service's summary unless it is a draft, and the status."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from mappings.balances import has_sufficient_funds, parse_balances
from mappings.banking import build_invalid_field_problem
from mappings.batch_bodies import (
    SentPayment,
    build_unpayable_problem,
    read_recipients,
    select_listed_recipient_fields,
)
from mappings.batch_views import Batch, Facts, build_batch, drop_nulls, is_draft
from mappings.current import BALANCE_PATH, SUMMARY_PATH
from mappings.effects import JSON, Call, CompareAndSet, LoadFacts, Parallel, SubFlow
from mappings.errors import NOT_FOUND, is_transient
from mappings.failures import (
    Conflict,
    Failure,
    Invalid,
    Problem,
    ProblemList,
    Refused,
    Unreachable,
)
from mappings.lazy_sequences import filter_rows, iterate_field, map_rows, materialize_rows
from mappings.matching import Entry, Payment, extract_recipient_id, match_payments_with_entries
from mappings.objects import ARCHIVED, determine_shown_payout_currency
from mappings.outcome_matching import fetch_if_exists
from mappings.payloads import extract_batch, find_payments

WRONG_STATUS = Problem("invalid_status", "The batch's status does not allow this.")

SUMMARIES_PER_CHUNK = 40
"""Maximum number of summaries in memory; each may hold a hundred thousand payments."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The stored state of a batch, by its first id; a batch created elsewhere has no facts."""

    id: str
    facts: Facts
    entries: Sequence[Entry]

    @property
    def summary_call(self) -> Call:
        return Call("GET", SUMMARY_PATH.format(id=self.facts.get("upstream") or self.id))


def load_batch(batch_id: str, payment_ids: Collection[str] | None = None) -> SubFlow:
    """Loads a batch; calls GET /batch/:id/summary unless it is a draft.

    ``batch_id`` is its first id, or any that it has had at the service. Of a draft, only the payments
    in ``payment_ids`` are loaded, if it has them all. Raises Invalid for a batch deleted through the
    gateway. The status may be missing: see ``add_missing_status``.
    """
    stored_batch = yield from _load_stored_batch(batch_id, payment_ids)
    summary = None if is_draft(stored_batch.facts) else (yield stored_batch.summary_call)
    return (yield from _build_loaded_batch(stored_batch, summary))


def load_created_batch(facts: Facts, entries: Sequence[Entry], response: JSON) -> SubFlow:
    """Loads a batch just created; calls GET /batch/:id/summary if the response is incomplete."""
    created = extract_batch(response)
    id_, payments = str(created["id"]), find_payments(response)
    batch = build_batch(id_, facts, entries, created, payments)
    # A create may be answered with no more than the id (contract, section 5).
    if created.get("status") and created.get("createdAt") and (payments or not entries):
        return batch
    try:
        summary = yield Call("GET", SUMMARY_PATH.format(id=id_))
    except Failure as failure:
        # The batch exists: after an error here the client would create, and pay, another.
        batch = structs.replace(build_batch(id_, facts, entries, {}, None), service_fields=created)
        # A read of the balance for the status would time out as well.
        is_open = isinstance(failure, Unreachable)
        return structs.replace(batch, computed_status="open") if is_open else batch
    fields = {**created, **drop_nulls(extract_batch(summary))}
    if (latest_payments := find_payments(summary)) is not None:
        payments = latest_payments
    return build_batch(id_, facts, entries, fields, payments)


def load_batch_by_given_facts(batch: Batch, facts: Facts) -> SubFlow:
    """Loads the batch that ``facts`` name (GET /batch/:id/summary), ignoring later stored state."""
    stored_batch = StoredBatch(batch.id, {**batch.facts, **facts}, batch.entries)
    # Just created, so that the service may not show it yet.
    summary = (yield from fetch_if_exists(stored_batch.summary_call.path)) or {}
    return (yield from _build_loaded_batch(stored_batch, summary))


def load_batches(batch_ids: Sequence[str]) -> SubFlow:
    """Loads batches, their summaries in parallel; a failure takes the place of its batch."""
    results: list[Batch | Exception] = []
    for start in range(0, len(batch_ids), SUMMARIES_PER_CHUNK):
        results += yield from _load_chunk_of_batches(batch_ids[start : start + SUMMARIES_PER_CHUNK])
    return results


def _load_chunk_of_batches(batch_ids: Sequence[str]) -> SubFlow:
    stored_batches: list[StoredBatch | Invalid] = []
    for batch_id in batch_ids:
        try:
            stored_batches.append((yield from _load_stored_batch(batch_id)))
        except Invalid as error:
            stored_batches.append(error)
    # The summaries of the whole chunk are one parallel step; drafts need no call.
    calls = [
        stored_batch.summary_call
        for stored_batch in stored_batches
        if isinstance(stored_batch, StoredBatch) and not is_draft(stored_batch.facts)
    ]
    answers = iter((yield Parallel(calls)) if calls else [])
    results: list[Batch | Exception] = []
    for stored_batch in stored_batches:
        if isinstance(stored_batch, Invalid):
            results.append(stored_batch)
            continue
        summary = None if is_draft(stored_batch.facts) else next(answers)
        if not isinstance(summary, Exception):
            summary = yield from _build_loaded_batch(stored_batch, summary)
        results.append(summary)
    return results


def is_missing_batch_failure(failure: Exception) -> bool:
    """Whether a failure says that the batch is deleted, through the gateway or elsewhere."""
    return isinstance(failure, Invalid) or (isinstance(failure, Refused) and failure.status == 404)


def require_batch_not_superseded(batch_id: str) -> SubFlow:
    """Raises Invalid (``invalid_status``) for a superseded batch, which must never be started.

    Starts alone need this: for any other operation such a batch is not found.
    """
    redirect = yield LoadFacts("alias", batch_id)
    if redirect.get("abandoned") and not (yield LoadFacts("batch", batch_id)):
        raise Invalid(WRONG_STATUS)


def _load_stored_batch(requested_id: str, payment_ids: Collection[str] | None = None) -> SubFlow:
    batch_id, facts = requested_id, (yield LoadFacts("batch", requested_id))
    if not facts:
        # A batch submitted from a draft has another id at the service, which redirects here.
        redirect = yield LoadFacts("alias", requested_id)
        # A superseded batch: only its id at the service leads here, and clients know another one.
        if redirect.get("abandoned"):
            raise Invalid(NOT_FOUND)
        if redirect.get("id"):
            batch_id, facts = redirect["id"], (yield LoadFacts("batch", redirect["id"]))
    if facts.get("phase") == "deleted":
        raise Invalid(NOT_FOUND)
    entries: Sequence[Entry] = []
    if payment_ids and is_draft(facts):
        ids = tuple(payment_ids)
        entries = (yield LoadFacts("payments", batch_id, ids)).get("entries", [])
    # A missing id may be that of the service, or of no payment.
    if facts and (payment_ids is None or not is_draft(facts) or len(entries) < len(payment_ids)):
        entries = (yield LoadFacts("payments", batch_id)).get("entries", [])
    return StoredBatch(batch_id, facts, entries)


def _build_loaded_batch(stored_batch: StoredBatch, summary: JSON) -> SubFlow:
    """Builds a batch from its summary, or from its entries if it is a draft."""
    if is_draft(stored_batch.facts):
        entries = yield from add_recipient_details(stored_batch.entries)
        return build_batch(stored_batch.id, stored_batch.facts, entries, {}, None)
    payments, entries = find_payments(summary), stored_batch.entries
    # The ids are stored only once, so all of them must be known.
    if (
        stored_batch.facts.get("is_new")
        and payments is not None
        and len(payments) >= len(entries)
        and all(iterate_field(payments, "id"))
    ):
        entries = yield from _store_upstream_payment_ids(stored_batch, payments)
    fields = extract_batch(summary)
    return build_batch(stored_batch.id, stored_batch.facts, entries, fields, payments)


def _store_upstream_payment_ids(stored_batch: StoredBatch, payments: Sequence[Payment]) -> SubFlow:
    """Stores which upstream payment each entry of a draft has become, after its submission."""
    matched_entries = _match_draft_entries(stored_batch, payments)

    def build_redirect(entry: Entry) -> CompareAndSet:
        facts = {"id": entry["id"], "batch": stored_batch.id, "createdAt": entry.get("createdAt")}
        return CompareAndSet("alias", entry["upstream"], facts)

    id_, redirects = stored_batch.id, map_rows(build_redirect, matched_entries)
    entries = CompareAndSet("payments", id_, {"entries": matched_entries}, linked=redirects)
    expected = {name: stored_batch.facts.get(name) for name in ("is_new", "version", "upstream")}
    # In a conflict another request has stored the ids, and the batch may have been edited since.
    with suppress(Conflict):
        yield CompareAndSet("batch", id_, {"is_new": None}, expected=expected, linked=(entries,))
    return matched_entries


def _match_draft_entries(stored_batch: StoredBatch, payments: Sequence[Payment]) -> Sequence[Entry]:
    """Returns a draft's entries with their ids at the service, matched by recipient and amount."""
    entries = map_rows(_hide_entry_ids_from_matching, stored_batch.entries)
    pairs = match_payments_with_entries(payments, entries, stored_batch.facts.get("currency"))
    matched_pairs = filter_rows(pairs, lambda pair: pair[1] is not None)
    return materialize_rows(map_rows(lambda pair: _set_matched_ids(*pair), matched_pairs))


def _hide_entry_ids_from_matching(entry: Entry) -> Entry:
    # Entries with ids are matched by id, but these ids are not the service's yet.
    return {**entry, "id": None, "upstream": None, "ours": entry["id"]}


def _set_matched_ids(payment: Payment, entry: Entry) -> Entry:
    # From now on the service shows what ``told`` has.
    fields = {name: value for name, value in entry.items() if name not in ("ours", "told")}
    return {**fields, "id": entry["ours"], "upstream": payment["id"]}


def add_recipient_details(entries: Sequence[Entry]) -> SubFlow:
    """Calls GET /recipients/:id for each recipient of which only the id is known."""
    unknown = [entry for entry in entries if "name" not in entry["recipient"]]

    def select_details(answer: Any) -> dict[str, JSON]:
        if isinstance(answer, Exception):
            return {}
        return select_listed_recipient_fields(answer["recipient"])

    ids = filter(None, map(extract_recipient_id, unknown))
    recipients = yield from read_recipients(ids, select_details)
    if not recipients:
        return entries

    def add_details(entry: Entry) -> Entry:
        details = recipients.get(extract_recipient_id(entry), {})
        return {**entry, "recipient": {**details, **entry["recipient"]}}

    return materialize_rows(map_rows(add_details, entries))


MAX_RECIPIENTS = 1000
"""Number of recipients that an edit of a draft reads: its client waits for them."""


def add_recipients_of_draft_payments(
    payments: Sequence[SentPayment], entries: Sequence[Entry]
) -> SubFlow:
    """Completes the entries of payments added to a draft: GET /recipients/:id.

    The service would refuse a payment to a recipient that does not exist or cannot be paid, but it
    gets the payments of a draft only later. Raises Invalid for them. If the payments have more than
    ``MAX_RECIPIENTS`` recipients, none is read, and the service refuses them later.
    """

    def select_details(answer: Any) -> JSON:
        if isinstance(answer, Refused) and answer.status == 404:
            return None
        if isinstance(answer, Exception):
            raise answer
        recipient = answer["recipient"]
        currency = determine_shown_payout_currency(recipient)
        return select_listed_recipient_fields(recipient), currency

    if not (ids := _list_recipients_unless_many(entries)):
        return entries
    details_by_id = yield from read_recipients(ids, select_details)
    problems = ProblemList()
    for payment, entry in zip(payments, entries, strict=True):
        details = details_by_id[extract_recipient_id(entry)]
        if problem := _find_recipient_problem(payment.recipient_field, details):
            problems.add_problem(problem)
    if problems:
        raise Invalid(*problems, omitted_count=problems.more)

    def add_details(entry: Entry) -> Entry:
        recipient, currency = details_by_id[extract_recipient_id(entry)]
        told = dict(_INITIAL_PAYMENT_FIELDS)
        if entry.get("sourceAmount"):
            # It arrives in the currency of the recipient's primary account.
            told["targetCurrency"] = currency
        return {**entry, "recipient": recipient, "told": told}

    return materialize_rows(map_rows(add_details, entries))


def _list_recipients_unless_many(entries: Sequence[Entry]) -> list[JSON]:
    """Lists the ids of the entries' recipients, each once; none if there are very many."""
    ids = dict[JSON, None]()
    for entry in entries:
        ids[extract_recipient_id(entry)] = None
        if len(ids) > MAX_RECIPIENTS:
            return []
    return list(ids)


def _find_recipient_problem(field: str, details: JSON) -> Problem | None:
    if details is None:
        return build_invalid_field_problem(field, "names no recipient")
    recipient, _currency = details
    is_payable = recipient.get("status") not in ("suspended", ARCHIVED)
    return None if is_payable else build_unpayable_problem(field)


_INITIAL_PAYMENT_FIELDS = {"memo": "", "compliance": {"status": "pending", "checkedAt": None}}
"""What a service shows of a payment that was just added, if it has no memo."""


# Status by balance


def add_missing_status(batch: Batch) -> SubFlow:
    """Adds the status; calls GET /balance only if neither service nor stored state gives it."""
    (completed,) = yield from add_missing_statuses([batch])
    return completed


def add_missing_statuses(batches: Sequence[Batch]) -> SubFlow:
    """Like ``add_missing_status``, with one call for all batches."""
    if all(batch.status for batch in batches):
        return batches
    try:
        balances = parse_balances((yield Call("GET", BALANCE_PATH)))
    except Failure:
        balances = None  # a batch is shown as open rather than not at all
    return [set_missing_status_by_balance(batch, balances) for batch in batches]


def fetch_balances_for_status_filter() -> SubFlow:
    """Calls GET /balance, for a filter by status; None if the service refuses the call.

    Raises a transient failure: without the balance the list would lack batches.
    """
    try:
        return parse_balances((yield Call("GET", BALANCE_PATH)))
    except Failure as failure:
        if is_transient(failure):
            raise
        return None


def set_missing_status_by_balance(
    batch: Batch, balances: Sequence[Mapping[str, JSON]] | None
) -> Batch:
    """Sets a missing status: pending if the known balances do not cover the batch, else open."""
    if batch.status:
        return batch
    has_funds = balances is None or has_sufficient_funds(balances, batch.payments, batch.currency)
    return structs.replace(batch, computed_status="open" if has_funds else "pending")
