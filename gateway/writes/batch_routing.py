"""At which service a batch was begun: there it stays, whatever is switched later.

Of what went through the legacy service the ledger has a mark (kind ``begun``, by the id that
clients know), and in it the write that was the first: where nothing of that happened, the mark is
taken back, unless another write came meanwhile. Of what was made, edited or started through the
current one it has facts (kind ``batch``). What was only imported has facts as well, and has not been
touched here.

Of two requests that are the first to touch a batch, one for each service, one wins: whoever marks it
finds it untouched, and whoever changes it first finds no mark, in the same commit. The other one is
decided anew.
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
"""What takes one away, and what is found where there is none."""

Side = Literal["legacy", "current"]


class DecidedOtherwise(Exception):
    """Another request was the first to touch a batch, at the other service; nothing of this was done."""


class BatchRouting:
    def __init__(self, ledger: Ledger, ids: Ids) -> None:
        self._ledger = ledger
        self._ids = ids

    async def marks(self, owner: Tenant, batches: Iterable[str], by: str) -> list[CompareAndSet]:
        """What marks those that are not marked yet, and finds them untouched here.

        To be recorded with the write ``by`` which they go there; raises DecidedOtherwise.
        """
        marks = []
        for one in batches:
            there = await self._ledger.recall(owner, BEGUN, one)
            if not there:
                marks.append(await self._mark(owner, one, by))
            elif first := there.get("by"):  # from now on not by that one alone
                marks.append(CompareAndSet(BEGUN, one, {"by": None}, expected={"by": first}))
        return marks

    async def _mark(self, owner: Tenant, batch: str, by: str) -> CompareAndSet:
        mark = {**LEGACY, "by": by}
        current = await self._current(owner, batch)
        facts = await self._ledger.recall(owner, "batch", current)
        match await self.side(owner, batch):
            case "legacy":  # by another name, whatever was under way here then
                return CompareAndSet(BEGUN, batch, mark, expected=NOWHERE)
            case "current":
                raise DecidedOtherwise
        untouched = CompareAndSet("batch", current, {}, expected=build_batch_condition(facts))
        return CompareAndSet(BEGUN, batch, mark, expected=NOWHERE, linked=(untouched,))

    async def nowhere(self, owner: Tenant, batches: Iterable[str]) -> Sequence[CompareAndSet]:
        """What finds none of them marked, by any of its names, and changes nothing.

        To be recorded with the first change that is made here.
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
        """They are not there, or no more."""
        old = [one for one in batches if await self._ledger.recall(owner, BEGUN, one)]
        if old:
            await self._ledger.record_all(
                owner, [CompareAndSet(BEGUN, one, NOWHERE) for one in old]
            )

    async def side(self, owner: Tenant, batch: str) -> Side | None:
        """Of a batch by any id that clients name it by; None of one that neither side touched."""
        if await self._ledger.recall(owner, BEGUN, batch):
            return "legacy"
        current = await self._current(owner, batch)
        # Begun there by the name that was imported since, and named otherwise now. Before any facts:
        # a change that was under way here meanwhile may have made some.
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
        """What clients call it, where that is something else."""
        return (await self._ids.known(owner, {current})).get(current)


async def take_back(ledger: Ledger, owner: Tenant, batches: Iterable[str], by: str) -> None:
    """The marks that a write made, of which it is known that nothing happened."""
    for one in batches:
        with suppress(Conflict):
            await ledger.record(owner, BEGUN, one, NOWHERE, find={"by": by})


def is_as_imported(facts: Mapping[str, Any]) -> bool:
    """Whether a batch is the legacy service's as it was imported: every change counts it on."""
    imported = facts.get("imported")
    return imported is not None and (imported, "sent") == (facts.get("version"), facts.get("phase"))
