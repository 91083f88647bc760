"""Payments that are being added to a batch at the service.

An add is among the batch's facts (``ADDS``) until its outcome is known. While it is in doubt, the batch is
unlocked for other adds only (contract, section 7, Blocking).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from mappings.batch_locks import (
    ADDS,
    MAX_LOCK_WAITS,
    UNLOCKED_PHASES,
    build_batch_condition,
    build_lock_record,
    build_unlocked_facts,
)
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import Batch, build_batch_record
from mappings.drafts import build_entries
from mappings.effects import JSON, AwaitFacts, CompareAndSet, LoadFacts, Request, Step
from mappings.errors import OTHER_IN_DOUBT
from mappings.failures import Conflict, Halted, Invalid, Unknown
from mappings.lazy_sequences import chain_rows, filter_rows
from mappings.matching import Entry
from mappings.payouts import SubFlow

_IS_ADDED = "is_added"


def is_open_to_adds(facts: Mapping[str, JSON]) -> bool:
    """Whether no change of a batch is under way, but for adds that are in doubt."""
    return facts.get("phase") in UNLOCKED_PHASES


@dataclass(frozen=True, slots=True)
class Add:
    """A payment that is being added to a batch, from when it is taken for that."""

    batch: Batch
    name: str
    body: Mapping[str, JSON]
    since: str
    """By which it is seen whether the batch is still taken for this add."""

    def others(self) -> Generator[Step, Any, list[JSON]]:
        """The bodies of the other payments whose add is under way or in doubt, or told no id."""
        facts = yield LoadFacts("batch", self.batch.id)
        adds = facts.get(ADDS) or {}
        return [body for name, body in adds.items() if name != self.name]

    @property
    def in_doubt(self) -> CompareAndSet:
        """Gives the batch back to other adds, while the outcome of this one is unknown."""
        facts = build_unlocked_facts(self.batch, "sent")
        find = {"phase": "editing", "since": self.since}
        return CompareAndSet("batch", self.batch.id, facts, expected=find)


def begin_add(batch: Batch, request: Request, body: Mapping[str, JSON]) -> SubFlow:
    """Takes the batch to add a payment; Conflict if another change has or had it."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    adds = batch.facts.get(ADDS) or {}
    if body in adds.values():
        raise Halted(OTHER_IN_DOUBT, retry_after=1)
    if not (batch.has_lock or is_open_to_adds(batch.facts)):
        raise Conflict("batch")
    named = {ADDS: {**adds, request.seed: body}}
    if batch.has_lock:
        yield CompareAndSet("batch", batch.id, named)
        return Add(batch, request.seed, body, str(batch.facts.get("since")))
    since = f"{request.now.isoformat()} {request.seed}"
    yield build_lock_record(batch, {"phase": "editing", "since": since, **named})
    return Add(batch, request.seed, body, since)


def confirm_add(add: Add, entry: Entry) -> SubFlow:
    """Gives the batch back with the payment that was added; whether it was in doubt before or not."""
    facts, entries = yield from _hold(add)
    id_ = entry.get("upstream")
    # An add that came between may have seen it.
    others = filter_rows(entries, lambda one: id_ is None or id_ not in _ids_of(one))
    left = {**facts.get(ADDS, {})}
    if id_ is None:
        left[add.name] = {**add.body, _IS_ADDED: True}
    else:
        left.pop(add.name, None)
    yield build_batch_record(add.batch.id, _after_add(facts, left), chain_rows(others, [entry]))


def drop_add(add: Add) -> SubFlow:
    """Gives the batch back without a payment that was not added."""
    facts, _ = yield from _hold(add)
    left = {name: body for name, body in facts.get(ADDS, {}).items() if name != add.name}
    after = _after_add(facts, left)
    if facts.get("since") == add.since:  # nobody has found anything of it
        del after["version"]
    yield CompareAndSet("batch", add.batch.id, after)


def _ids_of(entry: Entry) -> tuple[JSON, JSON]:
    return entry.get("id"), entry.get("upstream")


def _after_add(
    facts: Mapping[str, JSON], left: Mapping[str, Mapping[str, JSON]]
) -> dict[str, JSON]:
    """The facts with which an add is over; of those that are added nobody asks once none is in doubt."""
    is_open = any(not body.get(_IS_ADDED) for body in left.values())
    version = (facts.get("version") or 0) + 1
    return {"phase": "sent", "since": None, "version": version, ADDS: left if is_open else None}


def _hold(add: Add) -> SubFlow:
    """The batch's facts and entries, taken again if it was given back while the add was in doubt."""
    facts = yield LoadFacts("batch", add.batch.id)
    if facts.get("since") == add.since:
        return facts, build_entries(add.batch)
    for _ in range(MAX_LOCK_WAITS):
        facts = yield AwaitFacts("batch", add.batch.id, condition=is_open_to_adds)
        again = {"phase": "editing", "since": f"{add.since} again"}
        try:
            yield CompareAndSet("batch", add.batch.id, again, expected=build_batch_condition(facts))
        except Conflict:
            continue
        return facts, (yield LoadFacts("payments", add.batch.id)).get("entries", [])
    raise Unknown("other changes of the batch are under way")
