"""Loads batches: the stored state, the service's summary unless it is a draft, and the status.

A service may show a change later than it confirms it. What a draft is made of must not lack a payment
that was just added, nor have one that was just removed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from mappings import money
from mappings.balances import has_sufficient_funds
from mappings.batch_views import Batch, build_batch, is_draft
from mappings.current import BALANCE_PATH, SUMMARY_PATH
from mappings.dates import parse_instant_or_earliest
from mappings.effects import (
    JSON,
    MAX_READ_LAG,
    AwaitFacts,
    Call,
    CompareAndSet,
    LoadFacts,
    Parallel,
    SubFlow,
)
from mappings.errors import NOT_FOUND
from mappings.failures import (
    Conflict,
    Failure,
    Halted,
    Invalid,
    Problem,
    Refused,
    is_retryable_read_failure,
)
from mappings.lazy_sequences import (
    chain_rows,
    filter_rows,
    iterate_chunks,
    iterate_field,
    map_rows,
    materialize_rows,
)
from mappings.matching import Entry, Payment, list_entry_ids, match_payments_with_entries
from mappings.objects import AMOUNT_FIELDS, Facts, drop_nulls
from mappings.outcome_matching import ShownPayments, fetch_if_exists, parse_creation_time
from mappings.payloads import extract_batch, find_payments, parse_balances
from mappings.payment_recipients import add_recipient_details

WRONG_STATUS = Problem("invalid_status", "The batch's status does not allow this.")
NOT_SHOWN_YET = Problem(
    "internal_server_error",
    "The service does not show the last changes of this batch yet; nothing was done. Try again later.",
)
CREATION_OPEN = Problem(
    "internal_server_error",
    "The outcome of a request that may have created this batch is in doubt; nothing was done. Try "
    "again later.",
)
READ_LAG_RETRY_AFTER_SECONDS = 5

SUMMARIES_PER_CHUNK = 40
"""Maximum number of summaries in memory; each may hold a hundred thousand payments."""


def load_batch(
    batch_id: str,
    payment_ids: Collection[str] | None = None,
    *,
    superseded_problem: Problem = NOT_FOUND,
    facts: Facts | None = None,
) -> SubFlow:
    """Loads a batch; calls GET /batch/:id/summary unless it is a draft.

    ``batch_id`` is its first id, or any that it has had at the service; ``facts`` are those that are
    stored under it, if they are known. Of a draft, only the payments
    in ``payment_ids`` are loaded, if it has them all. Raises Invalid for a batch deleted through the
    gateway, and ``superseded_problem`` for a superseded one. The status may be missing: see
    ``add_missing_statuses``.
    """
    batch = yield from _load_stored_batch(batch_id, payment_ids, superseded_problem, facts)
    summary = None if batch.is_draft else (yield from _fetch_summary(batch))
    return (yield from _complete_stored_batch(batch, summary))


def load_batch_again(batch: Batch, payment_ids: Collection[str] | None = None) -> SubFlow:
    """Loads a batch by its first id: the one by which it is requested may be superseded by now."""
    loaded: Batch = yield from load_batch(batch.id, payment_ids)
    loaded.requested_id = batch.requested_id
    return loaded


def reload_batch(batch: Batch) -> SubFlow:
    """Completes a batch that was just created: GET /batch/:id/summary.

    Its facts and entries count, not what is stored later. The service may not show the batch yet.
    """
    summary = (yield from fetch_if_exists(_build_summary_call(batch).path)) or {}
    loaded = yield from _complete_stored_batch(batch, summary)
    return fill_service_fields(loaded, batch.service_fields)


def _fetch_summary(batch: Batch) -> SubFlow:
    """Calls GET /batch/:id/summary; raises Halted if the service does not show a submitted draft yet."""
    try:
        return (yield _build_summary_call(batch))
    except Refused as refusal:
        # Its client has long had the batch, so it must not be told that there is none.
        if refusal.status == 404 and batch.facts.get("is_new"):
            raise build_read_lag_failure() from None
        raise


def _build_summary_call(batch: Batch) -> Call:
    return Call("GET", SUMMARY_PATH.format(id=batch.upstream_id))


def fill_service_fields(batch: Batch, fields: Mapping[str, JSON]) -> Batch:
    """Adds fields of the response to a write, for which the summary may show no value."""
    batch.service_fields = {**drop_nulls(fields), **drop_nulls(batch.service_fields)}
    return batch


def load_batches(batch_ids: Sequence[str]) -> SubFlow:
    """Loads batches, their summaries in parallel; a failure takes the place of its batch."""
    results: list[Batch | Exception] = []
    for chunk in iterate_chunks(batch_ids, SUMMARIES_PER_CHUNK):
        stored_batches: list[Any] = []
        for batch_id in chunk:
            try:
                stored_batches.append((yield from _load_stored_batch(batch_id)))
            except Invalid as error:
                stored_batches.append(error)
        # The summaries of the whole chunk are one parallel step; drafts need no call.
        sent = [each for each in stored_batches if isinstance(each, Batch) and not each.is_draft]
        answers = (yield Parallel([_build_summary_call(batch) for batch in sent])) if sent else []
        summaries = {batch.id: answer for batch, answer in zip(sent, answers, strict=True)}
        for batch in stored_batches:
            result = batch if isinstance(batch, Exception) else summaries.get(batch.id)
            if not isinstance(result, Exception):
                result = yield from _complete_stored_batch(batch, result)
            results.append(result)
    return results


def is_missing_batch_failure(failure: Exception) -> bool:
    """Whether a failure says that the batch is deleted, through the gateway or elsewhere."""
    return isinstance(failure, Invalid) or (isinstance(failure, Refused) and failure.is_not_found)


def _load_stored_batch(
    requested_id: str,
    payment_ids: Collection[str] | None = None,
    superseded_problem: Problem = NOT_FOUND,
    facts: Facts | None = None,
) -> SubFlow:
    """Loads the stored state, by the batch's first id; a batch created elsewhere has no facts."""
    batch_id = requested_id
    if facts is None:
        facts = yield LoadFacts("batch", requested_id)
    if not facts:
        # A batch submitted from a draft has another id at the service, which redirects here.
        redirect = yield LoadFacts("alias", requested_id)
        # A superseded batch: only its id at the service leads here, and clients know another one.
        if redirect.get("abandoned"):
            raise Invalid(superseded_problem)
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
    return Batch(batch_id, facts, entries, requested_id=requested_id)


def _complete_stored_batch(stored: Batch, summary: JSON) -> SubFlow:
    """Builds a batch from its summary, or from its entries if it is a draft."""
    id_, facts, entries = stored.id, stored.facts, stored.entries
    if stored.is_draft:
        entries = yield from add_recipient_details(entries)
        return build_batch(id_, facts, entries, {}, None, requested_id=stored.requested_id)
    payments = find_payments(summary)
    # The ids are stored only once, so all of them must be known.
    if (
        facts.get("is_new")
        and payments is not None
        and len(payments) >= len(entries)
        and all(iterate_field(payments, "id"))
    ):
        entries = yield from _store_upstream_payment_ids(stored, payments)
    elif facts.get("is_new") and payments is None:
        # Those of payments of the batch that it supersedes.
        entries = map_rows(lambda entry: {**entry, "upstream": None}, entries)
    page = find_payments(summary, allows_page=True) if payments is None else None
    if page and entries:
        entries = _add_shown_ids(entries, page, facts.get("currency"))
    is_only_page_known = bool(page) and not entries
    rows, fields = page if is_only_page_known else payments, extract_batch(summary)
    batch = build_batch(id_, facts, entries, fields, rows, requested_id=stored.requested_id)
    if is_only_page_known:
        batch.has_known_payments = False
    return batch


def _add_shown_ids(
    entries: Sequence[Entry], page: Sequence[Payment], currency: JSON
) -> list[Entry]:
    """Adds their ids to the entries of the payments on a page, by which clients edit these."""
    entries = [*entries]  # a lazy sequence has other objects each time
    pairs = match_payments_with_entries(page, entries, currency)
    ids = {id(entry): payment.get("id") for payment, entry in pairs if entry is not None}
    return [
        {"id": ids[id(entry)], "upstream": ids[id(entry)], **entry} if id(entry) in ids else entry
        for entry in entries
    ]


def _store_upstream_payment_ids(stored: Batch, payments: Sequence[Payment]) -> SubFlow:
    """Stores which upstream payment each entry of a draft has become, after its submission.

    They are matched by recipient and amount.
    """
    # Entries with ids are matched by id, but these ids are not the service's yet.
    unnamed_entries = map_rows(
        lambda entry: {**entry, "id": None, "upstream": None, "ours": entry["id"]}, stored.entries
    )
    currency = stored.facts.get("currency")
    pairs = match_payments_with_entries(payments, unnamed_entries, currency)
    matched_pairs = filter_rows(pairs, lambda pair: pair[1] is not None)
    matched_entries = materialize_rows(
        map_rows(lambda pair: _set_matched_ids(*pair), matched_pairs)
    )

    def build_redirect(entry: Entry) -> CompareAndSet:
        facts = {"id": entry["id"], "batch": stored.id, "createdAt": entry.get("createdAt")}
        return CompareAndSet("alias", entry["upstream"], facts)

    id_, redirects = stored.id, map_rows(build_redirect, matched_entries)
    entries = CompareAndSet("payments", id_, {"entries": matched_entries}, linked=redirects)
    expected = {name: stored.facts.get(name) for name in ("is_new", "version", "upstream")}
    # In a conflict another request has stored the ids, and the batch may have been edited since.
    with suppress(Conflict):
        yield CompareAndSet("batch", id_, {"is_new": None}, expected=expected, linked=(entries,))
    return matched_entries


def _set_matched_ids(payment: Payment, entry: Entry) -> Entry:
    # From now on the service shows what ``told`` has.
    fields = {name: value for name, value in entry.items() if name not in ("ours", "told")}
    return {**fields, "id": entry["ours"], "upstream": payment["id"]}


# Batches of which nobody knows whether a request to the gateway has created them


def may_be_lost_creation(facts: Facts) -> bool:
    """Whether a ``POST /batches`` without a response may have made it; an import reads those too."""
    return not facts.get("createdAt") or bool(facts.get("elsewhere") or facts.get("imported"))


def require_no_lost_creation(batch: Batch) -> SubFlow:
    """Raises Invalid for a batch that may exist, and Halted if that is not known yet.

    If the service lists no batches, this may be the one that a ``POST /batches`` without a response
    created. It is never started (contract, section 7), because its client may have created another.
    """
    if not may_be_lost_creation(batch.facts):
        return
    unseen_times = yield LoadFacts("may exist", ids=(batch.upstream_id,))
    created_at = batch.service_fields.get("createdAt")
    if (yield from await_creation(batch.id, batch.upstream_id, created_at, unseen_times)):
        raise Invalid(WRONG_STATUS)


def await_creation(
    batch_id: str, upstream_id: str, created_at: JSON, unseen_times: Mapping[str, Sequence[str]]
) -> SubFlow:
    """Waits for the outcomes of the creations that may have made a batch created elsewhere.

    Returns whether one of them ended as a batch that may exist. Raises Halted if one stays open: a
    start now would pay twice, and a change could keep the creation from being recognized.
    """
    operation_ids = frozenset(
        id_ for id_, times in unseen_times.items() if is_created_between(created_at, times)
    )
    if not operation_ids:
        return False
    try:
        yield AwaitFacts("being created", upstream_id, condition=operation_ids.isdisjoint)
    except Conflict:
        raise Halted(CREATION_OPEN, retry_after=READ_LAG_RETRY_AFTER_SECONDS) from None
    # It may have been a draft's: then the batch has another id, which the next request is given.
    if (yield LoadFacts("alias", upstream_id)).get("id") not in (None, batch_id):
        raise Halted(CREATION_OPEN, retry_after=1)
    unseen_times = yield LoadFacts("may exist", ids=(upstream_id,))
    return not operation_ids.isdisjoint(unseen_times)


def is_created_between(created_at: JSON, times: Sequence[str]) -> bool:
    """Whether a batch was created between two times; True if its date is not known."""
    earliest, latest = map(datetime.fromisoformat, times)
    created = parse_creation_time(created_at)
    return created is None or earliest <= created <= latest


# Changes that the service does not show yet


def build_read_lag_failure() -> Halted:
    return Halted(NOT_SHOWN_YET, retry_after=READ_LAG_RETRY_AFTER_SECONDS)


def list_unrequested_payments(batch: Batch) -> list[Payment]:
    """Lists the payments that were not requested as legacy ones."""
    return [payment for payment in batch.payments if payment["asked_side"] is None]


def has_last_changes(
    batch: Batch, signed_adds: Sequence[Mapping[str, JSON]], now: datetime
) -> bool:
    """Whether the summary shows the changes that were made so recently that it may lack them."""
    is_changed = is_recently_changed(batch, now)
    is_removed = is_recent(batch.facts.get("removed_at"), now)
    recent_adds = [added for added in signed_adds if is_recent(added.get("changed_at"), now)]
    if not (is_changed or is_removed or recent_adds):
        return True
    if not batch.has_known_payments:
        return False
    others = list_unrequested_payments(batch)
    if is_changed and not (
        len(batch.payments) - len(others) >= len(list_requested_entries(batch))
        and all(map(_has_requested_amount, batch.payments))
    ):
        return False
    # One that may not have happened explains no payment: it may be the one that was removed.
    if is_removed and len(others) > sum("changed_at" in added for added in signed_adds):
        return False
    shown_payments = ShownPayments(others, batch.currency)
    return all(map(shown_payments.take_added, recent_adds))


def is_recently_changed(batch: Batch, now: datetime) -> bool:
    """Whether legacy requests changed the batch so recently that the summary need not show it."""
    return is_recent(batch.facts.get("changed_at") or batch.facts.get("updatedAt"), now)


def require_payments_shown(batch: Batch, ids: Iterable[str], now: datetime) -> None:
    """Raises Halted if one of these payments, which the summary does not show, was just added."""
    if not is_recently_changed(batch, now) or not (unknown_ids := frozenset(ids)):
        return
    for entry in batch.entries:
        if not unknown_ids.isdisjoint((*list_entry_ids(entry), entry.get("added_as"))):
            raise build_read_lag_failure()


def build_entries_from_batch(batch: Batch, now: datetime) -> Sequence[Entry]:
    """Builds an entry for every payment of a batch; without an amount if it was created elsewhere.

    They are the stored ones if the summary does not show the last changes yet, or all payments;
    then those without an id get that of the payment that is shown as theirs, by which an edit may
    name it, and payments without an entry get one, so that none is taken for one added later.
    """
    if batch.has_known_payments and has_last_changes(batch, (), now):
        return map_rows(_build_entry_unless_unrequested, batch.payments)
    entries = [*batch.entries]
    pairs = match_payments_with_entries(batch.payments, entries, batch.currency)
    shown_ids, others = dict[int, JSON](), list[Entry]()
    for payment, entry in pairs:
        if payment["id"] and entry is None:
            others.append(_build_entry_unless_unrequested(payment))
        elif payment["id"]:
            shown_ids[id(entry)] = payment["id"]

    def add_shown_id(entry: Entry) -> Entry:
        shown_id = None if list_entry_ids(entry) else shown_ids.get(id(entry))
        return {**entry, "id": shown_id} if shown_id else entry

    return chain_rows(map_rows(add_shown_id, entries), others)


def list_requested_entries(batch: Batch) -> Sequence[Entry]:
    """Lists the entries of payments that clients have requested, or whose amount they have changed."""
    return filter_rows(
        batch.entries, lambda entry: bool(entry.get("sourceAmount") or entry.get("targetAmount"))
    )


def _build_entry_unless_unrequested(payment: Payment) -> Entry:
    entry = build_payment_entry(payment)
    if payment["asked_side"] is None:
        # Only its id is needed: with an amount, it would be a payment that a client requested.
        entry = {name: value for name, value in entry.items() if name not in AMOUNT_FIELDS}
    return entry


_ENTRY_FIELDS = (
    "id",
    "upstream",
    "added_as",
    "recipient",
    "sourceAmount",
    "memo",
    "createdAt",
    "updatedAt",
)


def build_payment_entry(payment: Payment) -> Entry:
    """Builds the entry of a payment as the service shows it."""
    entry = {name: payment[name] for name in _ENTRY_FIELDS if payment.get(name) is not None}
    if (method := payment.get("method")) and not entry["recipient"].get("payoutMethod"):
        entry["recipient"] = {**entry["recipient"], "payoutMethod": method}
    side = payment.get("asked_side") or ("source" if payment.get("sourceAmount") else "target")
    # If the source amount was requested, the service has computed the target amount.
    if payment.get("targetAmount") and side == "target":
        entry |= {name: payment[name] for name in ("targetAmount", "targetCurrency")}
        entry.pop("sourceAmount", None)
    for name in ("sourceAmount", "targetAmount"):
        if name in entry:
            entry[name] = money.format_amount_unless_text(entry[name])  # it will be sent as text
    return entry


def _has_requested_amount(payment: Payment) -> bool:
    side = payment["asked_side"]
    return side is None or (
        money.parse_amount(payment[f"{side}Amount"]) == money.parse_amount(payment["asked_amount"])
    )


def is_recent(time: JSON, now: datetime) -> bool:
    """Whether a change was made so recently that the summary need not show it."""
    # There is no time if the batch was never changed through the gateway.
    return now - parse_instant_or_earliest(time) < MAX_READ_LAG


def show_recent_start(batch: Batch, now: datetime) -> None:
    """Shows a batch as started if it was just started: the service may show it as it was before."""
    if is_recent(batch.facts.get("started"), now) and batch.is_editable:
        batch.service_fields = {**batch.service_fields, "status": None}


# Status by balance


def add_missing_statuses(batches: Sequence[Batch]) -> SubFlow:
    """Adds statuses; calls GET /balance only if neither service nor stored state gives one."""
    if not all(batch.status for batch in batches):
        # Without the balance, a batch is shown as open rather than not at all.
        balances = yield from fetch_balances_or_none()
        for batch in batches:
            set_missing_status_by_balance(batch, balances)


def fetch_balances_or_none(*, is_required: bool = False) -> SubFlow:
    """Calls GET /balance; returns None if that fails.

    With ``is_required``, raises a transient failure: a list by status would lack batches.
    """
    try:
        return parse_balances((yield Call("GET", BALANCE_PATH)))
    except Failure as failure:
        if is_required and is_retryable_read_failure(failure):
            raise
        return None


def set_missing_status_by_balance(
    batch: Batch, balances: Sequence[Mapping[str, JSON]] | None
) -> None:
    """Sets a missing status: pending if the known balances do not cover the batch, else open."""
    if not batch.status:
        has_funds = balances is None or has_sufficient_funds(
            balances, batch.payments, batch.currency
        )
        batch.computed_status = "open" if has_funds else "pending"
