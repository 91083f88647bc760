"""Loading batches: the stored state, the service's summary unless it is a draft, and the status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mappings import funds
from mappings.batch_bodies import CACHE_SECONDS, extract_listed_recipient
from mappings.batch_views import Batch, Facts, build_batch, is_draft
from mappings.current import BALANCE, SUMMARY
from mappings.errors import NOT_FOUND, is_transient
from mappings.grammar import (
    JSON,
    Call,
    Conflict,
    Failure,
    Invalid,
    Parallel,
    Problem,
    Recall,
    Record,
    Refused,
)
from mappings.matching import Entry, Payment, match_payments, recipient_id
from mappings.payment_lists import extract_batch, extract_payments_if_told
from mappings.payouts import Sub
from mappings.rows import filter_rows, iterate_chunks, map_rows, packed

WRONG_STATUS = Problem("invalid_status", "The batch's status does not allow this.")

TOGETHER = 200
"""How many reads of recipients are one parallel step."""

SLICE = 40
"""How many summaries are in memory at a time; each may hold a hundred thousand payments."""


@dataclass(frozen=True, slots=True)
class Known:
    """The stored state of a batch, by its first id; a batch created elsewhere has no facts."""

    id: str
    facts: Facts
    entries: Sequence[Entry]

    @property
    def call(self) -> Call:
        return Call("GET", SUMMARY.format(id=self.facts.get("upstream") or self.id))


def load_batch(named: str) -> Sub:
    """GET /batch/:id/summary, unless the batch is a draft.

    ``batch_id`` is its first id, or any that it has had at the service. Raises Invalid for a batch
    deleted through the gateway. The status may be missing: see ``add_missing_status``.
    """
    known = yield from _known(named)
    if is_draft(known.facts):
        return (yield from _draft(known))
    return (yield from _as_told(known, (yield known.call)))


def load_batch_with_facts(batch: Batch, facts: Facts) -> Sub:
    """GET /batch/:id/summary of the batch that ``facts`` name, ignoring later stored state."""
    known = Known(batch.id, {**batch.facts, **facts}, batch.entries)
    return (yield from _as_told(known, (yield known.call)))


def load_batches(names: Sequence[str]) -> Sub:
    """Load several batches, their summaries in parallel; a failure takes the place of its batch."""
    found: list[Batch | Exception] = []
    for start in range(0, len(names), SLICE):
        found += yield from _slice(names[start : start + SLICE])
    return found


def _slice(names: Sequence[str]) -> Sub:
    known: list[Known | Invalid] = []
    for named in names:
        try:
            known.append((yield from _known(named)))
        except Invalid as gone:
            known.append(gone)
    # One parallel step for the whole chunk. Drafts need no call.
    calls = [one.call for one in known if isinstance(one, Known) and not is_draft(one.facts)]
    answers = iter((yield Parallel(calls)) if calls else [])
    found: list[Batch | Exception] = []
    for one in known:
        if isinstance(one, Invalid):
            found.append(one)
        elif is_draft(one.facts):
            found.append((yield from _draft(one)))
        else:
            told = next(answers)
            is_told = not isinstance(told, Exception)
            found.append((yield from _as_told(one, told)) if is_told else told)
    return found


def is_missing(failure: Exception) -> bool:
    """Whether a failure says that the batch is deleted, through the gateway or elsewhere."""
    return isinstance(failure, Invalid) or (isinstance(failure, Refused) and failure.status == 404)


def reject_abandoned_batch(named: str) -> Sub:
    """Raise Invalid (``invalid_status``) for a superseded batch, which must never be started.

    Starts alone need this: for any other operation such a batch is not found.
    """
    alias = yield Recall("alias", named)
    if alias.get("abandoned") and not (yield Recall("batch", named)):
        raise Invalid(WRONG_STATUS)


def _known(named: str) -> Sub:
    batch_id, facts = named, (yield Recall("batch", named))
    if not facts:
        # A batch submitted from a draft has another id at the service, which redirects here.
        alias = yield Recall("alias", named)
        if alias.get("abandoned"):
            raise Invalid(NOT_FOUND)
        if alias.get("id"):
            batch_id, facts = alias["id"], (yield Recall("batch", alias["id"]))
    if facts.get("phase") == "deleted":
        raise Invalid(NOT_FOUND)
    entries = (yield Recall("payments", batch_id)).get("entries", []) if facts else []
    return Known(batch_id, facts, entries)


def _draft(known: Known) -> Sub:
    entries = yield from _with_recipients(known.entries)
    return build_batch(known.id, known.facts, entries, {}, None)


def _as_told(known: Known, body: JSON) -> Sub:
    payments, entries = extract_payments_if_told(body), known.entries
    # Only if every payment has an id: the ids are stored once, so they have to be complete.
    if (
        known.facts.get("is_new")
        and payments is not None
        and all(one.get("id") for one in payments)
    ):
        entries = yield from _named_anew(known, payments)
    return build_batch(known.id, known.facts, entries, extract_batch(body), payments)


def _named_anew(known: Known, payments: Sequence[Payment]) -> Sub:
    """Store which payment of a batch just submitted is which payment of the draft."""
    found = _found_again(known, payments)

    def alias(entry: Entry) -> Record:
        facts = {"id": entry["id"], "batch": known.id, "createdAt": entry.get("createdAt")}
        return Record("alias", entry["upstream"], facts)

    entries = Record("payments", known.id, {"entries": found}, also=map_rows(alias, found))
    as_read = {name: known.facts.get(name) for name in ("is_new", "version", "upstream")}
    try:
        yield Record("batch", known.id, {"is_new": None}, find=as_read, also=(entries,))
    except Conflict:
        # Another request has stored the ids, and the batch may have been edited since.
        return found
    return found


def _found_again(known: Known, payments: Sequence[Payment]) -> Sequence[Entry]:
    """Return a draft's entries with their ids at the service, matched by recipient and amount."""
    pairs = match_payments(payments, map_rows(_bare, known.entries), known.facts.get("currency"))
    found = filter_rows(pairs, lambda pair: pair[1] is not None)
    return packed(map_rows(lambda pair: _with_ids(*pair), found))


def _bare(entry: Entry) -> Entry:
    # An entry that has ids would be matched by them, and these are not yet the service's.
    return {**entry, "id": None, "upstream": None, "ours": entry["id"]}


def _with_ids(payment: Payment, entry: Entry) -> Entry:
    kept = {name: value for name, value in entry.items() if name != "ours"}
    return {**kept, "id": entry["ours"], "upstream": payment["id"]}


def _with_recipients(entries: Sequence[Entry]) -> Sub:
    """GET /recipients/:id for each recipient of whom only the id is known."""
    unknown = [recipient_id(one) for one in entries if "name" not in one["recipient"]]
    ids = list(dict.fromkeys(filter(None, unknown)))
    if not ids:
        return entries
    found: dict[JSON, JSON] = {}
    for some in iterate_chunks(ids, TOGETHER):
        calls = [Call("GET", f"/recipients/{id_}", keeps=CACHE_SECONDS) for id_ in some]
        for id_, answer in zip(some, (yield Parallel(calls)), strict=True):
            if not isinstance(answer, Exception):
                found[id_] = extract_listed_recipient(answer["recipient"])

    def known(entry: Entry) -> Entry:
        recipient = entry["recipient"]
        return {**entry, "recipient": {**found.get(recipient_id(entry), {}), **recipient}}

    return packed(map_rows(known, entries))


# Status by balance


def resolve_status(batch: Batch) -> Sub:
    """GET /balance, only if neither the service nor the stored state gives the status."""
    (told,) = yield from resolve_statuses([batch])
    return told


def resolve_statuses(batches: Sequence[Batch]) -> Sub:
    """Like ``add_missing_status``, with one call for all batches."""
    if all(batch.status for batch in batches):
        return batches
    try:
        balances = funds.parse_balances((yield Call("GET", BALANCE)))
    except Failure:
        balances = None  # a batch is shown as open rather than not at all
    return [set_status_by_balance(batch, balances) for batch in batches]


def load_balances_for_status() -> Sub:
    """GET /balance, for a filter by status; None if the service refuses it.

    Raises a transient failure: without the balance the list would lack batches.
    """
    try:
        return funds.parse_balances((yield Call("GET", BALANCE)))
    except Failure as failure:
        if is_transient(failure):
            raise
        return None


def set_status_by_balance(batch: Batch, balances: Sequence[Mapping[str, JSON]] | None) -> Batch:
    """Set a missing status: pending if the known balances do not cover the batch, else open."""
    if batch.status:
        return batch
    is_enough = balances is None or funds.has_sufficient_funds(
        balances, batch.payments, batch.currency
    )
    return replace(batch, computed="open" if is_enough else "pending")
