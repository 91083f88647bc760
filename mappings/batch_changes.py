"""PATCH of a batch: one request adds, changes and removes payments, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from mappings import batch_bodies, settling
from mappings.banking import empty, invalid
from mappings.batch_bodies import Sent, collect_sent_payments
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import Batch, Called
from mappings.drafts import Edit, edit_batch, leave_unchanged
from mappings.grammar import JSON, Call, Invalid, Problem, Request
from mappings.ids import derive_id
from mappings.matching import Entry
from mappings.payouts import Sub
from mappings.rows import Rows, build_row_mapping, chain_rows, filter_rows, map_rows, packed


def edit_batch_payments(batch: Batch, request: Request) -> Sub:
    asked = _Changes.of(request, batch)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    request.refuse(_change_problems(batch, asked))
    if not asked:
        yield from leave_unchanged(batch)
        return
    currency = asked.facts.get("currency") or batch.currency
    recipients = yield from batch_bodies.resolve_recipients(asked.added, currency)
    added = packed(map_rows(partial(_entry, request, batch), asked.added, recipients, asked.places))
    call = _change(request, batch, asked, added)
    changes = partial(_by_id, asked)
    gone = map_rows(lambda one: asked.known(one).id, asked.removed)
    yield from edit_batch(batch, request, call, Edit(added, changes, gone, asked.facts))


class _Changes(NamedTuple):
    """The changes that one request makes to a batch and its payments.

    ``payment_refs`` are the existing payments that the request names, by the id used there.
    ``facts`` are the batch's new ``description`` and ``currency``, if they change.
    """

    added: Sequence[Sent]
    changed: Sequence[Sent]
    removed: Sequence[Sent]
    called: Mapping[str, Called]
    facts: Mapping[str, JSON]

    @classmethod
    def of(cls, request: Request, batch: Batch) -> _Changes:
        body = request.body
        sent = collect_sent_payments(body.get("payments"), problems=request.problems)
        updates = collect_sent_payments(body.get("update_payments"), "update_payments")
        named = chain_rows(filter_rows(sent, _is_named), updates)
        removed = collect_sent_payments(body.get("remove_payments"), "remove_payments")
        added = filter_rows(sent, _is_new)
        called: Mapping[str, Called] = {}
        # So many payments are named that indexing all of the batch takes less memory.
        if isinstance(named, Rows) or isinstance(removed, Rows):
            called = batch.called(None)
        elif names := frozenset(str(one.body.get("id")) for one in chain(named, removed)):
            called = batch.called(names)

        def left_out(one: Sent) -> Sent:
            there = called.get(str(one.body.get("id")))
            return batch_bodies.drop_unchanged_fields(one, there and batch.payments[there.place])

        return cls(added, packed(map_rows(left_out, named)), removed, called, _facts(body, batch))

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.added or self.removed or self.facts) or any(map(_changes, self.changed))

    @property
    def sent_on(self) -> Sequence[Sent]:
        """The changed payments, without those sent back as they are."""
        return filter_rows(self.changed, _changes)

    @property
    def places(self) -> Sequence[int]:
        return range(len(self.added))

    def known(self, sent: Sent) -> Called:
        return self.called[str(sent.body.get("id"))]


def _facts(body: Mapping[str, JSON], batch: Batch) -> dict[str, JSON]:
    """Return the changed fields of the batch itself; a description of None clears it."""
    facts: dict[str, JSON] = {}
    if "description" in body and (body["description"] or "") != (batch.description or ""):
        facts["description"] = body["description"]
    if body.get("sourceCurrency") and body["sourceCurrency"] != batch.currency:
        facts["currency"] = body["sourceCurrency"]
    return facts


def _changes(sent: Sent) -> bool:
    return bool(batch_bodies.extract_changes(sent.body))


def _by_id(asked: _Changes) -> Mapping[str, Mapping[str, JSON]]:
    changed = asked.sent_on
    changes = ((asked.known(one).id, batch_bodies.extract_changes(one.body)) for one in changed)
    return build_row_mapping(changed, changes)


def _is_named(sent: Sent) -> bool:
    return bool(sent.body.get("id"))


def _is_new(sent: Sent) -> bool:
    return not _is_named(sent)


def _entry(
    request: Request, batch: Batch, sent: Sent, recipient: Mapping[str, JSON], number: int
) -> Entry:
    # Derived, so that a resumed flow gives the payment the same id again.
    id_ = derive_id("P", request.seed, batch.id, str(number))
    return batch_bodies.build_entry(sent, recipient, id_=id_)


def _change_problems(batch: Batch, asked: _Changes) -> Iterator[Problem]:
    # No document shows how the service would convert existing payments.
    if "currency" in asked.facts and (len(batch.filling) or not batch.tells_payments):
        yield invalid("sourceCurrency", "can be changed only while the batch has no payments")
    # One byte for each payment: a set of very many ids would be far larger.
    seen = bytearray(len(batch.payments))
    for one in chain(asked.changed, asked.removed):
        if not one.body.get("id"):
            yield empty(f"{one.place}id")
            continue
        there = asked.called.get(str(one.body["id"]))
        if there is None:
            yield invalid(f"{one.place}id", "is not a payment of this batch")
            continue
        if seen[there.place]:
            yield invalid(f"{one.place}id", "is named more than once")
        seen[there.place] = True
    for one in asked.changed:
        sent, faults = batch_bodies.drop_malformed_amounts(one)
        yield from faults
        yield from batch_bodies.validate_amounts(sent)
    currency = asked.facts.get("currency") or batch.currency
    for one in asked.added:
        sent, faults = batch_bodies.drop_malformed_amounts(one)
        yield from faults
        yield from batch_bodies.validate_added_payment(sent, currency)


def _change(request: Request, batch: Batch, asked: _Changes, added: Sequence[Entry]) -> Call:
    memo = request.manners.send_memo

    def update(sent: Sent) -> dict[str, JSON]:
        changed = batch_bodies.extract_changes(sent.body, memo=memo)
        return {"id": asked.known(sent).upstream, **changed}

    changed = asked.sent_on
    fields = {name: value for name, value in asked.facts.items() if name == "description"}
    lists = {
        "payments": asked.added,
        "update_payments": changed,
        "remove_payments": asked.removed,
    }
    return Call(
        "PATCH",
        f"/batches/{batch.upstream}",
        {
            "payments": map_rows(partial(_as_legacy, memo=memo), added),
            "update_payments": map_rows(update, changed),
            "remove_payments": map_rows(
                lambda sent: {"id": asked.known(sent).upstream}, asked.removed
            ),
            **fields,
        },
        sent_as=batch_bodies.Names(
            {name: name for name in (*lists, *fields)}, lists, batch_bodies.map_change_fields
        ),
        witness=(batch.upstream,),
        settle=settling.settle_edited_batch(
            batch.upstream,
            batch.payments,
            batch.currency,
            added=added,
            changed=lambda: {asked.known(one).upstream: one.body for one in changed},
            removed=lambda: [asked.known(one).upstream for one in asked.removed],
            fields=fields,
        ),
    )


def _as_legacy(entry: Entry, *, memo: bool) -> dict[str, JSON]:
    """Build a payment to add in the legacy shape, which the inferred PATCH is assumed to take."""
    return {
        "recipient": {"id": entry["recipient"]["id"]},
        **batch_bodies.extract_changes(entry, memo=memo),
    }
