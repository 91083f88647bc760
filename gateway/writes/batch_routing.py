"""Which service owns a batch: a batch stays at the service that first changed it, whichever service
its key is switched to later.

A batch that went through the legacy service has a mark in the object state (kind ``begun``, by the
legacy id). The mark names the operation that was the first: if that operation was not executed, the
mark is reverted, unless another write used the batch meanwhile. A batch that was created, edited or
started through the current service has facts (kind ``batch``). A batch that was only imported also
has facts, but neither service owns it yet.

If two first requests for one batch go to different services at the same time, one of them wins: the
mark is set only if the batch is unchanged, and the first change is made only if there is no mark,
each check in the commit that it guards. The other request is routed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from gateway.storage import Ledger, Tenant
from gateway.storage.alias_ids import Ids
from mappings.batch_locks import build_batch_condition
from mappings.effects import CompareAndSet
from mappings.failures import Conflict

BEGUN = "begun"
LEGACY: Mapping[str, Any] = {"at": "legacy"}
"""The facts of a mark."""
NOWHERE: Mapping[str, Any] = {"at": None, "by": None}
"""Deletes a mark as new facts, and matches a missing mark as expected facts."""

Side = Literal["legacy", "current"]


class DecidedOtherwise(Exception):
    """The other service owns the batch since a moment ago; nothing of this request was executed."""


class BatchRouting:
    def __init__(self, ledger: Ledger, ids: Ids) -> None:
        self._ledger = ledger
        self._ids = ids

    async def marks(self, owner: Tenant, batches: Iterable[str], by: str) -> list[CompareAndSet]:
        """Builds the changes that mark batches as the legacy service's, if they are unchanged here.

        Save them with the first write of the operation that goes to the legacy service. Raises
        BatchRoutedElsewhereError.
        """
        marks = []
        for one in batches:
            there = await self._ledger.recall(owner, BEGUN, one)
            if not there:
                marks.append(await self._mark(owner, one, by))
            elif first := there.get("by"):  # used by two operations now: no longer reverted
                marks.append(CompareAndSet(BEGUN, one, {"by": None}, expected={"by": first}))
        return marks

    async def _mark(self, owner: Tenant, batch: str, by: str) -> CompareAndSet:
        mark = {**LEGACY, "by": by}
        current = await self._current(owner, batch)
        facts = await self._ledger.recall(owner, "batch", current)
        match await self.side(owner, batch):
            case "legacy":  # marked under its other id
                return CompareAndSet(BEGUN, batch, mark, expected=NOWHERE)
            case "current":
                raise DecidedOtherwise
        untouched = CompareAndSet("batch", current, {}, expected=build_batch_condition(facts))
        return CompareAndSet(BEGUN, batch, mark, expected=NOWHERE, linked=(untouched,))

    async def nowhere(self, owner: Tenant, batches: Iterable[str]) -> Sequence[CompareAndSet]:
        """Builds checks that batches have no mark under any of their ids; they change nothing.

        Save them with the first change that is made through the current service.
        """
        names: dict[str, None] = {}
        for one in batches:
            current = await self._current(owner, one)
            name = await self._name(owner, current) or current
            names |= dict.fromkeys((one, current, name))
        return [CompareAndSet(BEGUN, name, {}, expected=NOWHERE) for name in names]

    async def take_back(self, owner: Tenant, batches: Iterable[str], by: str) -> None:
        await take_back(self._ledger, owner, batches, by)

    async def unmark(self, owner: Tenant, batches: Iterable[str]) -> None:
        """Deletes the marks of batches that do not exist at the legacy service."""
        old = [one for one in batches if await self._ledger.recall(owner, BEGUN, one)]
        if old:
            await self._ledger.record_all(
                owner, [CompareAndSet(BEGUN, one, NOWHERE) for one in old]
            )

    async def side(self, owner: Tenant, batch: str) -> Side | None:
        """The service that owns a batch, by any of its legacy ids; None if neither has changed it."""
        if await self._ledger.recall(owner, BEGUN, batch):
            return "legacy"
        current = await self._current(owner, batch)
        # The mark may be under an id that was imported since. It is read before the facts, which a
        # change that was in flight here meanwhile may have created.
        name = await self._name(owner, current)
        if name and name != batch and await self._ledger.recall(owner, BEGUN, name):
            return "legacy"
        facts = await self._ledger.recall(owner, "batch", current)
        if not facts:
            alias = await self._ledger.recall(owner, "alias", current)
            facts = await self._ledger.recall(owner, "batch", str(alias.get("id") or current))
            if alias.get("abandoned"):
                return "current"
        return "current" if facts and not is_as_imported(facts) else None

    async def _current(self, owner: Tenant, batch: str) -> str:
        return (await self._ids.current(owner, [batch])).get(batch, batch)

    async def _name(self, owner: Tenant, current: str) -> str | None:
        """The legacy id of a batch, if it differs from its current id."""
        return (await self._ids.known(owner, {current})).get(current)


async def take_back(ledger: Ledger, owner: Tenant, batches: Iterable[str], by: str) -> None:
    """Deletes the marks that only this operation set, once it is known not to have been executed."""
    for one in batches:
        with suppress(Conflict):
            await ledger.record(owner, BEGUN, one, NOWHERE, find={"by": by})


def is_as_imported(facts: Mapping[str, Any]) -> bool:
    """Whether a batch has not been changed since its import: every change increments its version."""
    imported = facts.get("imported")
    return imported is not None and (imported, "sent") == (facts.get("version"), facts.get("phase"))
