"""Drafts: batches that are edited in the gateway and submitted to the service later.

From the first edit that the service has no path for, the gateway keeps the batch, and the service's
batch is superseded (contract, section 5).
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from mappings import money, outcome_rules
from mappings.batch_bodies import AMOUNT_FIELDS, apply_changes
from mappings.batch_locks import (
    ADDS,
    BEING_CHANGED,
    MAX_LOCK_ATTEMPTS,
    acquire_batch_lock,
    build_finished_change_facts,
    build_no_new_signed_change_guard,
    build_unchanged_batch_condition,
    call_under_lock,
    is_unlocked,
    load_batch_once_unlocked,
    release_batch_lock,
)
from mappings.batch_reads import load_batch_with_facts
from mappings.batch_views import Batch, build_batch_record
from mappings.effects import JSON, Call, CompareAndSet, Request
from mappings.errors import (
    convert_not_found_if_field_named,
    convert_not_found_to_invalid_field,
)
from mappings.failures import Conflict, Halted, Invalid, NoSuchOperation, Problem, Refused
from mappings.ids import derive_id
from mappings.lazy_sequences import chain_rows, filter_rows, map_rows
from mappings.matching import Entry, Payment
from mappings.payloads import extract_batch
from mappings.payment_bodies import build_batch_body
from mappings.payouts import SubFlow

CURRENCY_UNKNOWN = Problem(
    "invalid_status", "The batch cannot be changed: nothing tells in which currency it is."
)
PAYEE_UNKNOWN = Problem(
    "invalid_status", "The batch cannot be changed: nothing tells whom all of its payments pay."
)


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of a batch's entries, and of the batch itself.

    ``added_entries`` have ids made by the gateway; ``removed_ids`` and the keys of
    ``build_changes()`` are ids of entries. The changes are built on demand: by then the request's
    body is freed. ``facts`` are the new ``description`` and ``currency``, the latter only of a
    batch without payments.
    """

    added_entries: Sequence[Entry] = ()
    build_changes: Callable[[], Mapping[str, Mapping[str, JSON]]] = dict
    removed_ids: Sequence[JSON] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def has_payment_changes(self) -> bool:
        return bool(self.added_entries or self.removed_ids or self.build_changes())

    def build_entries_after_call(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Build the entries after the service has made the edit.

        Added entries have no id: the service gives them one, which the next summary shows.
        """
        return chain_rows(self._apply_changes(entries), map_rows(_drop_id, self.added_entries))

    def build_draft_entries(self, entries: Sequence[Entry], now: str) -> Sequence[Entry]:
        """Build the entries of a draft after the edit, with the times a service would set."""
        return chain_rows(
            self._apply_changes(entries, now),
            map_rows(partial(_set_timestamps, now), self.added_entries),
        )

    def _apply_changes(self, entries: Sequence[Entry], now: str | None = None) -> Sequence[Entry]:
        removed_ids = frozenset(self.removed_ids)
        rest = (
            filter_rows(entries, lambda entry: entry.get("id") not in removed_ids)
            if removed_ids
            else entries
        )
        changes = self.build_changes()
        return map_rows(partial(_change_entry, changes, now), rest) if changes else rest


def _change_entry(
    changes: Mapping[str, Mapping[str, JSON]], now: str | None, entry: Entry
) -> Entry:
    body = changes.get(entry.get("id", ""))
    updated = entry if body is None else apply_changes(entry, body)
    return updated if now is None or updated == entry else {**updated, "updatedAt": now}


def _drop_id(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "id"}


def _set_timestamps(now: str, entry: Entry) -> Entry:
    return {"createdAt": now, **entry, "updatedAt": now}


def edit_batch(batch: Batch, request: Request, call: Call, edit: Edit) -> SubFlow:
    """Make an edit with the inferred ``call``, or in a draft if the service has no such operation.

    The first edit of the second kind turns the batch into a draft and supersedes the service's
    batch, which is never started through the gateway from then on.
    """
    yield from acquire_batch_lock(
        batch,
        "editing",
        request.now,
        (build_no_new_signed_change_guard(batch.id, batch.signed_changes),),
    )
    now = format_timestamp(request.now)
    # A draft takes any currency: it has no batch at the service yet.
    if "currency" in edit.facts and not batch.is_draft:
        yield from _recreate_in_currency(batch, request, call, edit)
        return
    if batch.is_draft:
        entries = edit.build_draft_entries(batch.entries, now)
        redirects = _build_payment_redirects(batch, edit.added_entries, edit.removed_ids)
        yield from _record_draft(batch, request, entries, redirects, facts=edit.facts)
        return
    try:
        yield from call_under_lock(batch, call, convert_not_found_if_field_named)
    except NoSuchOperation:
        pass
    else:
        facts = {**build_finished_change_facts(batch, "sent"), **edit.facts}
        facts |= {"description_was": None} if edit.facts else {}
        yield build_batch_record(
            batch.id, facts, edit.build_entries_after_call(build_entries_from_batch(batch))
        )
        return
    if not edit.has_payment_changes:
        # A description changes nothing that is paid, so the service's batch need not be superseded.
        service_text = batch.service_fields.get(
            "description_told", batch.service_fields.get("description")
        )
        facts = {
            **build_finished_change_facts(batch, "sent"),
            **edit.facts,
            "description_was": service_text or "",
        }
        yield CompareAndSet("batch", batch.id, {**facts, "updatedAt": now})
        return
    if batch.currency is None:
        # Such a draft could never be submitted.
        yield from release_batch_lock(batch)
        raise Invalid(CURRENCY_UNKNOWN)
    entries_before = _build_draft_entries(batch, request)
    # A draft is submitted as new payments, each of which needs the id of its recipient.
    if not all(entry["recipient"].get("id") for entry in entries_before):
        yield from release_batch_lock(batch)
        raise Invalid(PAYEE_UNKNOWN)
    entries = edit.build_draft_entries(entries_before, now)
    redirects = _build_payment_redirects(batch, entries, edit.removed_ids)
    yield from _record_draft(
        batch, request, entries, redirects, (batch.upstream_id,), facts=edit.facts
    )


def _recreate_in_currency(batch: Batch, request: Request, edit_call: Call, edit: Edit) -> SubFlow:
    """POST /batches in another currency, with the added payments, for a batch without payments.

    No document shows how a service would change the currency of an existing batch, so the new batch
    supersedes it. ``edit_call`` maps field names to the client's.
    """
    # If this operation is given up, ``build_stale_lock_release`` keeps a batch created in this phase.
    yield CompareAndSet("batch", batch.id, {"phase": "making"})
    entries = edit.build_draft_entries((), format_timestamp(request.now))
    description = edit.facts.get("description", batch.description)
    currency, memo = str(edit.facts["currency"]), request.options.send_memo
    body = build_batch_body(currency, description, entries, memo=memo)
    field_names = {"currency": "sourceCurrency", "description": "description"}
    call = Call(
        "POST",
        "/batches",
        body,
        field_map=ChainMap(field_names, edit_call.field_map),  # type: ignore[arg-type] # it is only read
        reconcile=outcome_rules.build_created_batch_rule(body),
        match_fields=outcome_rules.select_batch_match_fields(body),
    )
    upstream_id = extract_batch(
        (yield from call_under_lock(batch, call, convert_not_found_to_invalid_field))
    )["id"]
    facts = {**edit.facts, "phase": "sent", "upstream": upstream_id, "is_new": True}
    redirects = [
        *_build_payment_redirects(batch, entries, ()),
        _build_batch_redirect(batch.id, batch.facts, upstream_id),
    ]
    yield from _record_draft(batch, request, entries, redirects, (batch.upstream_id,), facts=facts)


def _build_payment_redirects(
    batch: Batch, entries: Sequence[Entry], removed_ids: Sequence[JSON]
) -> Sequence[CompareAndSet]:
    """Build the redirects by which a payment is found by its id alone, or found to be deleted."""
    ids = chain_rows(
        map_rows(lambda entry: (entry["id"], False), entries),
        map_rows(lambda id_: (id_, True), removed_ids),
    )

    def build_redirect(id_and_removal: tuple[JSON, bool]) -> CompareAndSet:
        id_, is_removed = id_and_removal
        facts = {"gone": True} if is_removed else {"batch": batch.id, "gone": None}
        return CompareAndSet("alias", str(id_), facts)

    return map_rows(build_redirect, ids)


def _record_draft(
    batch: Batch,
    request: Request,
    entries: Sequence[Entry],
    payment_redirects: Sequence[CompareAndSet],
    superseded_ids: Sequence[str] = (),
    *,
    facts: Mapping[str, JSON],
) -> SubFlow:
    facts = {
        **build_finished_change_facts(batch, "draft"),
        "upstream": None,
        "elsewhere": None,
        "abandoned": [*batch.facts.get("abandoned", []), *superseded_ids],
        "currency": batch.currency,
        "description": batch.description,
        "description_was": None,
        "createdAt": batch.service_fields.get("createdAt") or batch.facts.get("createdAt"),
        "updatedAt": format_timestamp(request.now),
        **facts,
    }
    # By these records any later write to a superseded batch is refused, above all its start.
    batch_redirects = [
        CompareAndSet("alias", upstream, {"abandoned": True}) for upstream in superseded_ids
    ]
    batch_record = build_batch_record(batch.id, facts, entries, payment_redirects)
    yield replace(batch_record, linked=(*batch_record.linked, *batch_redirects))


def build_entries_from_batch(batch: Batch) -> Sequence[Entry]:
    """Build an entry for every payment of a batch, including those created elsewhere."""
    return map_rows(_build_payment_entry, batch.payments)


def _build_draft_entries(batch: Batch, request: Request) -> Sequence[Entry]:
    """Build the entries of a new draft, with an id made by the gateway if the service shows none.

    ``told`` keeps the service's amounts that a draft no longer shows, because a client that has
    read them may send them back unchanged.
    """

    def add_id_and_shown_amounts(entry: Entry, payment: Payment, position: int) -> Entry:
        names = (name for name in AMOUNT_FIELDS if name not in entry and payment.get(name))
        if amounts := {name: money.format_numeric_amount(payment[name]) for name in names}:
            entry = {**entry, "told": amounts}
        return {
            **entry,
            "id": entry.get("id") or derive_id("P", request.seed, batch.id, f"kept {position}"),
        }

    entries = build_entries_from_batch(batch)
    return map_rows(add_id_and_shown_amounts, entries, batch.payments, range(len(entries)))


_ENTRY_FIELDS = ("id", "upstream", "recipient", "sourceAmount", "memo", "createdAt", "updatedAt")


def _build_payment_entry(payment: Payment) -> Entry:
    entry = {name: payment[name] for name in _ENTRY_FIELDS if payment.get(name) is not None}
    if (method := payment.get("method")) and not entry["recipient"].get("payoutMethod"):
        entry["recipient"] = {**entry["recipient"], "payoutMethod": method}
    if payment.get("targetAmount") and not _is_computed_target(payment):
        entry |= {name: payment[name] for name in ("targetAmount", "targetCurrency")}
        entry.pop("sourceAmount", None)
    for name in ("sourceAmount", "targetAmount"):
        if name in entry:
            entry[name] = money.format_numeric_amount(entry[name])  # it will be sent as text
    return entry


def _is_computed_target(payment: Mapping[str, JSON]) -> bool:
    """Whether the service computed the target amount, because the source amount was requested."""
    side = payment.get("asked_side") or ("source" if payment.get("sourceAmount") else "target")
    return bool(side == "source")


def build_stale_lock_release(
    batch_id: str, facts: Mapping[str, JSON], executed_at: str | None, created_id: str | None
) -> CompareAndSet | None:
    """Build the record that releases the lock of a change that is given up; None if there is none.

    ``executed_at`` is when the change's last write was executed, None if it was not; ``created_id``
    is the id of the batch that it created, if any.
    """
    phase = facts.get("phase")
    if is_unlocked(facts):
        return None
    released_facts: dict[str, JSON] = {"phase": "sent" if facts.get("upstream") else "draft"}
    also: tuple[CompareAndSet, ...] = ()
    # Each phase has one write; what it did decides what the batch is now.
    if phase == "deleting" and executed_at:
        released_facts = {"phase": "deleted"}
    elif phase == "starting" and executed_at:
        released_facts |= {"started": executed_at}
    elif phase == "making" and created_id:
        released_facts = {"phase": "sent", "upstream": created_id, "is_new": True}
        also = (_build_batch_redirect(batch_id, facts, created_id),)
        if superseded_id := facts.get("upstream"):
            superseded_ids = [*facts.get("abandoned", []), superseded_id]
            # The new batch at the service has its own currency and description.
            released_facts |= {"abandoned": superseded_ids, "currency": None, "description": None}
            also = (*also, CompareAndSet("alias", superseded_id, {"abandoned": True}))
    new_facts = {
        **released_facts,
        "since": None,
        ADDS: None,
        "version": (facts.get("version") or 0) + 1,
    }
    return CompareAndSet(
        "batch", batch_id, new_facts, expected=build_unchanged_batch_condition(facts), linked=also
    )


def _build_batch_redirect(
    batch_id: str, facts: Mapping[str, JSON], upstream_id: str
) -> CompareAndSet:
    """Build the redirect from a batch's new id at the service to its first id."""
    return CompareAndSet(
        "alias", upstream_id, {"id": batch_id, "createdAt": facts.get("createdAt")}
    )


def format_timestamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Submitting drafts


def submit_draft(batch: Batch, request: Request) -> SubFlow:
    """POST /batches for a draft, once, when a quote, a summary or the start needs it.

    Returns the submitted batch, which keeps its ids for clients; a batch that is not a draft is
    returned as it is. If another request is submitting it, this one waits and uses the result.
    """
    for _ in range(MAX_LOCK_ATTEMPTS):
        if not batch.is_draft:
            return batch
        try:
            yield from acquire_batch_lock(batch, "making", request.now)
        except Conflict:  # another request edits or submits the draft
            batch = yield from load_batch_once_unlocked(batch.id)
        else:
            return (yield from _create_upstream_batch(batch, request))
    raise Halted(BEING_CHANGED, retry_after=1)


def _create_upstream_batch(batch: Batch, request: Request) -> SubFlow:
    description = batch.facts.get("description")
    # From the stored entries and not from what answers show: those may have computed values.
    body = build_batch_body(
        str(batch.currency), description, batch.entries, memo=request.options.send_memo
    )
    outcome_rule, match_fields = (
        outcome_rules.build_created_batch_rule(body),
        outcome_rules.select_batch_match_fields(body),
    )
    call = Call("POST", "/batches", body, reconcile=outcome_rule, match_fields=match_fields)
    created = extract_batch(
        (
            yield from call_under_lock(
                batch, call, partial(_add_payment_ids_to_refusal, batch.entries)
            )
        )
    )
    upstream_id = created["id"]
    facts = {**build_finished_change_facts(batch, "sent"), "upstream": upstream_id, "is_new": True}
    redirect = _build_batch_redirect(batch.id, batch.facts, upstream_id)
    yield CompareAndSet("batch", batch.id, facts, linked=(redirect,))
    # Not the stored state, which an edit may have changed already. A caller that then acquires the
    # lock conflicts with that edit.
    return (yield from load_batch_with_facts(batch, facts))


_PAYMENT_FIELD_PATTERN = re.compile(r"payments[.\[](\d+)")


def _add_payment_ids_to_refusal(entries: Sequence[Entry], refusal: Refused) -> Refused:
    """Prefix the problems of a refused draft with the payment's id.

    The request that submits a draft has no payments, so a field of it could not name one.
    """

    def add_payment_id(problem: Problem) -> Problem:
        match = _PAYMENT_FIELD_PATTERN.match(problem.field or "")
        if match is None or int(match[1]) >= len(entries):
            return problem
        return replace(problem, message=f"{entries[int(match[1])]['id']}: {problem.message}")

    refusal = convert_not_found_to_invalid_field(refusal)
    return Refused(
        refusal.status, [*map(add_payment_id, refusal.problems)], retry_after=refusal.retry_after
    )
