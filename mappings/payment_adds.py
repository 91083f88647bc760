"""Payments that are being added to a batch at the service.

An add is stored in the batch's fact ``ADDS`` until its outcome is known. While it is in doubt, the
batch is unlocked only for other adds (contract, section 7, Blocking).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mappings.batch_locks import (
    ADDS,
    MAX_LOCK_WAITS,
    SIGNED_CHANGES_KIND,
    build_batch_lock_acquisition,
    build_finished_change_facts,
    build_unchanged_batch_condition,
    is_open_to_adds,
    list_open_signed_changes,
)
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import SIGNED_ADDS, Batch, build_batch_record
from mappings.drafts import build_entries_from_batch, format_timestamp
from mappings.effects import JSON, AwaitFacts, CompareAndSet, LoadFacts, Request, Step, SubFlow
from mappings.errors import OTHER_IN_DOUBT
from mappings.failures import Conflict, Halted, Invalid, Unknown
from mappings.ids import derive_deterministic_id
from mappings.lazy_sequences import chain_rows, filter_rows
from mappings.matching import Entry

_IS_ADDED = "is_added"
"""Marks an add that was executed, but whose payment the response did not identify."""


@dataclass(frozen=True, slots=True)
class Add:
    """A payment that is being added to a batch, which is locked for it."""

    batch: Batch
    name: str
    body: Mapping[str, JSON]
    since: str
    """Identifies the lock: another value means that the batch was unlocked since."""
    requested_at: datetime

    def load_bodies_of_other_adds(self) -> Generator[Step, Any, list[JSON]]:
        """Loads the bodies of other adds: under way, in doubt, or answered without an id.

        Also those of clients' signed requests since the batch was loaded.
        """
        open_changes = yield LoadFacts(SIGNED_CHANGES_KIND, self.batch.id)
        signed_adds = yield LoadFacts(SIGNED_ADDS, self.batch.id)
        facts = yield LoadFacts("batch", self.batch.id)
        new_names = signed_adds.keys() - self.batch.signed_changes.keys()
        signed_bodies = [
            *filter(None, list_open_signed_changes(open_changes)),
            *(signed_adds[name] for name in new_names),
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
        own_lock = {"phase": "editing", "since": self.since}
        return CompareAndSet("batch", self.batch.id, facts, expected=own_lock)


def lock_batch_for_add(batch: Batch, request: Request, body: Mapping[str, JSON]) -> SubFlow:
    """Locks the batch to add a payment; raises Conflict if it was changed since it was loaded."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    adds = batch.facts.get(ADDS) or {}
    # An identical add in doubt may have been executed: this one could pay a second time.
    if body in adds.values():
        raise Halted(OTHER_IN_DOUBT, retry_after=1)
    if not (batch.has_lock or is_open_to_adds(batch.facts)):
        raise Conflict("batch")
    # Recorded with the lock and before the call, so that no add is missed after a crash.
    new_facts = {ADDS: {**adds, request.seed: body}}
    if batch.has_lock:
        yield CompareAndSet("batch", batch.id, new_facts)
        return Add(batch, request.seed, body, str(batch.facts.get("since")), request.now)
    since = f"{request.now.isoformat()} {request.seed}"
    yield build_batch_lock_acquisition(batch, {"phase": "editing", "since": since, **new_facts})
    return Add(batch, request.seed, body, since, request.now)


def store_added_payment_and_unlock(add: Add, entry: Entry) -> SubFlow:
    """Records the added payment and unlocks the batch, even if the add was in doubt before."""
    facts, entries = yield from _relock_batch_and_load_facts(add)
    id_ = entry.get("upstream")
    # Another add may have loaded the batch since and stored the payment already.
    other_entries = filter_rows(
        entries, lambda stored: id_ is None or id_ not in (stored.get("id"), stored.get("upstream"))
    )
    remaining_adds = {**facts.get(ADDS, {})}
    if id_ is None:
        remaining_adds[add.name] = {**add.body, _IS_ADDED: True}
    else:
        remaining_adds.pop(add.name, None)
    times = dict.fromkeys(("updatedAt", "changed_at"), format_timestamp(add.requested_at))
    facts = {**_build_facts_after_add(facts, remaining_adds), **times}
    created_ids = []
    if id_ is None:
        entry = {**entry, "added_as": derive_deterministic_id("P", add.name, add.batch.id)}
        created_ids = [entry["added_as"]]
    entries = chain_rows(other_entries, [entry])
    yield build_batch_record(add.batch.id, facts, entries, created_ids)


def unlock_batch_after_failed_add(add: Add) -> SubFlow:
    """Unlocks the batch after a payment was not added."""
    facts, _ = yield from _relock_batch_and_load_facts(add)
    remaining_adds = {name: body for name, body in facts.get(ADDS, {}).items() if name != add.name}
    finished_facts = _build_facts_after_add(facts, remaining_adds)
    # No other request has had the lock, so their loaded batch is current and they need no conflict.
    if facts.get("since") == add.since:
        del finished_facts["version"]
    yield CompareAndSet("batch", add.batch.id, finished_facts)


def _build_facts_after_add(
    facts: Mapping[str, JSON], remaining_adds: Mapping[str, Mapping[str, JSON]]
) -> dict[str, JSON]:
    """Builds the facts after an add. Executed adds are stored only while another is in doubt."""
    is_any_open = any(not body.get(_IS_ADDED) for body in remaining_adds.values())
    adds = remaining_adds if is_any_open else None
    return {**build_finished_change_facts(facts, "sent"), ADDS: adds}


def _relock_batch_and_load_facts(add: Add) -> SubFlow:
    """Returns the batch's facts and entries; locks it again if it was unlocked during the doubt."""
    facts = yield LoadFacts("batch", add.batch.id)
    if facts.get("since") == add.since:
        return facts, build_entries_from_batch(add.batch, add.requested_at)
    for _ in range(MAX_LOCK_WAITS):
        facts = yield AwaitFacts("batch", add.batch.id, condition=is_open_to_adds)
        new_lock = {"phase": "editing", "since": f"{add.since} again"}
        is_unchanged = build_unchanged_batch_condition(facts)
        try:
            yield CompareAndSet("batch", add.batch.id, new_lock, expected=is_unchanged)
        except Conflict:
            continue
        return facts, (yield LoadFacts("payments", add.batch.id)).get("entries", [])
    raise Unknown("other changes of the batch are under way")
