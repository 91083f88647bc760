"""PATCH of a batch: payments added, changed and removed by one request, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from mappings import batch_bodies, settling
from mappings.banking import empty, invalid
from mappings.batch_bodies import Sent, sent_in
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import Batch, Called
from mappings.drafts import Edit, edited
from mappings.grammar import JSON, Call, Invalid, Problem, Request
from mappings.ids import made
from mappings.matching import Entry
from mappings.payouts import Sub
from mappings.rows import Rows, each, joined, kept, keyed, packed


def with_other_payments(batch: Batch, request: Request) -> Sub:
    asked = _Changes.of(request, batch)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    request.refuse(*_change_problems(batch, asked))
    if not asked:
        return
    recipients = yield from batch_bodies.recipients_of(asked.added, batch.currency)
    added = packed(each(partial(_entry, request, batch), asked.added, recipients, asked.places))
    call = _change(request, batch, asked, added)
    changes = partial(_by_id, asked)
    gone = each(lambda one: asked.known(one).id, asked.removed)
    yield from edited(batch, request, call, Edit(added, changes, gone))


class _Changes(NamedTuple):
    """What is to become of a batch's payments. ``called`` are those that are named."""

    added: Sequence[Sent]
    changed: Sequence[Sent]
    removed: Sequence[Sent]
    called: Mapping[str, Called]

    @classmethod
    def of(cls, request: Request, batch: Batch) -> _Changes:
        body = request.body
        sent = sent_in(body.get("payments"), problems=request.problems)
        updates = sent_in(body.get("update_payments"), "update_payments")
        changed = joined(kept(sent, _is_named), updates)
        removed = sent_in(body.get("remove_payments"), "remove_payments")
        added = kept(sent, _is_new)
        if isinstance(changed, Rows) or isinstance(removed, Rows):
            return cls(added, changed, removed, batch.called(None))
        names = frozenset(str(one.body.get("id")) for one in chain(changed, removed))
        return cls(added, changed, removed, batch.called(names) if names else {})

    def __bool__(self) -> bool:
        """Whether anything is."""
        changes = any(batch_bodies.changes(one.body) for one in self.changed)
        return bool(self.added or self.removed) or changes

    @property
    def places(self) -> Sequence[int]:
        return range(len(self.added))

    def known(self, sent: Sent) -> Called:
        return self.called[str(sent.body.get("id"))]


def _by_id(asked: _Changes) -> Mapping[str, Mapping[str, JSON]]:
    changes = ((asked.known(one).id, batch_bodies.changes(one.body)) for one in asked.changed)
    return keyed(asked.changed, changes)


def _is_named(sent: Sent) -> bool:
    return bool(sent.body.get("id"))


def _is_new(sent: Sent) -> bool:
    return not _is_named(sent)


def _entry(
    request: Request, batch: Batch, sent: Sent, recipient: Mapping[str, JSON], number: int
) -> Entry:
    id_ = made("P", request.seed, batch.id, str(number))
    return batch_bodies.entry_of(sent, recipient, id_=id_)


def _change_problems(batch: Batch, asked: _Changes) -> Iterator[Problem]:
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
        yield from batch_bodies.amount_problems(one)
    for one in asked.added:
        yield from batch_bodies.added_problems(one, batch.currency)


def _change(request: Request, batch: Batch, asked: _Changes, added: Sequence[Entry]) -> Call:
    memo = request.manners.send_memo

    def update(sent: Sent) -> dict[str, JSON]:
        changed = batch_bodies.changes(sent.body, memo=memo)
        return {"id": asked.known(sent).upstream, **changed}

    lists = {
        "payments": asked.added,
        "update_payments": asked.changed,
        "remove_payments": asked.removed,
    }
    return Call(
        "PATCH",
        f"/batches/{batch.upstream}",
        {
            "payments": each(partial(_as_legacy, memo=memo), added),
            "update_payments": each(update, asked.changed),
            "remove_payments": each(lambda sent: {"id": asked.known(sent).upstream}, asked.removed),
        },
        sent_as=batch_bodies.Names(
            {name: name for name in lists}, lists, batch_bodies.names_of_change
        ),
        witness=(batch.upstream,),
        settle=settling.edited_batch(
            batch.upstream,
            batch.payments,
            batch.currency,
            added=added,
            changed=lambda: {asked.known(one).upstream: one.body for one in asked.changed},
            removed=lambda: [asked.known(one).upstream for one in asked.removed],
        ),
    )


def _as_legacy(entry: Entry, *, memo: bool) -> dict[str, JSON]:
    """A payment to add, as the legacy document shows it: the payload that is presumed."""
    return {"recipient": {"id": entry["recipient"]["id"]}, **batch_bodies.changes(entry, memo=memo)}
