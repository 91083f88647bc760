"""Payments that are being added to batches at the service.

While an add is in doubt, the batch is unlocked only for other adds (contract, section 7, Blocking).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from mappings import money
from mappings.batch_locks import (
    ADDS,
    MAX_LOCK_ATTEMPTS,
    SIGNED_CHANGES_KIND,
    acquire_batch_lock,
    build_finished_change_facts,
    build_unchanged_batch_condition,
    identify_lock,
    is_open_to_adds,
    list_open_signed_changes,
    update_batch_when,
)
from mappings.batch_reads import build_entries_from_batch, is_recent
from mappings.batch_views import SIGNED_ADDS, Batch, build_batch_record
from mappings.dates import format_timestamp
from mappings.effects import JSON, CompareAndSet, LoadFacts, Request, Step, SubFlow
from mappings.errors import OTHER_IN_DOUBT
from mappings.failures import Conflict, Halted, Unknown
from mappings.lazy_sequences import chain_rows, filter_rows
from mappings.matching import Entry
from mappings.objects import Facts

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
    for _ in range(MAX_LOCK_ATTEMPTS):
        # An operator may close another add meanwhile, without the lock.
        with suppress(Conflict):
            return (yield from _record_finished_add(add, entry))
    raise Unknown("other changes of the batch are under way")


def _record_finished_add(add: Add, entry: Entry | None) -> SubFlow:
    facts, entries = yield from _relock_batch_and_load_facts(add)
    adds = {name: body for name, body in facts.get(ADDS, {}).items() if name != add.name}
    # Unconditional in the usual case, because that needs no commit of its own.
    expected = {ADDS: facts.get(ADDS)} if adds else {}
    id_ = None if entry is None else entry.get("upstream")
    if entry is not None and id_ is None:
        adds[add.name] = {**add.body, _IS_ADDED: True}
    # Executed adds are stored only while another is in doubt.
    is_any_open = any(not body.get(_IS_ADDED) for body in adds.values())
    new_facts = build_finished_change_facts(facts, "sent") | {ADDS: adds if is_any_open else None}
    if entry is None:
        # No other request has had the lock, so their loaded batch is current: they need no conflict.
        if facts.get("since") == identify_lock(add.request):
            del new_facts["version"]
        yield CompareAndSet("batch", add.batch.id, new_facts, expected)
        return
    # Another add may have loaded the batch since and stored the payment already.
    other_entries = filter_rows(
        entries, lambda stored: id_ is None or id_ not in (stored.get("id"), stored.get("upstream"))
    )
    new_facts |= dict.fromkeys(("updatedAt", "changed_at"), format_timestamp(add.request.now))
    created_ids = [] if id_ else [entry["added_as"]]
    new_entries = chain_rows(other_entries, [entry])
    record = build_batch_record(add.batch.id, new_facts, new_entries, created_ids)
    # By these redirects a payment is found by its id alone.
    redirects = [CompareAndSet("alias", each, {"batch": add.batch.id}) for each in created_ids]
    yield structs.replace(record, expected=expected, linked=(*record.linked, *redirects))


def _relock_batch_and_load_facts(add: Add) -> SubFlow:
    """Returns the batch's facts and entries; locks it again if it was unlocked during the doubt."""
    id_, since = add.batch.id, identify_lock(add.request)
    facts = yield LoadFacts("batch", id_)
    if facts.get("since") == since:
        return facts, build_entries_from_batch(add.batch, add.request.now)

    def build_lock(facts: Facts) -> CompareAndSet:
        lock_facts = {"phase": "editing", "since": f"{since} again"}
        is_unchanged = build_unchanged_batch_condition(facts) | {ADDS: facts.get(ADDS)}
        return CompareAndSet("batch", id_, lock_facts, expected=is_unchanged)

    if facts.get("since") != f"{since} again":
        try:
            facts = yield from update_batch_when(id_, is_open_to_adds, build_lock)
        except Halted:
            raise Unknown("other changes of the batch are under way") from None
    return facts, (yield LoadFacts("payments", id_)).get("entries", [])
