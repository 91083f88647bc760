"""At which service a batch was begun: there it stays, whatever is switched later.

Of what went through the legacy service the ledger has a mark (kind ``begun``, by the id that
clients know). Of what was made, edited or started through the current one it has facts (kind
``batch``). What was only imported has facts as well, and has not been touched here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gateway.ids import Ids
from gateway.store import Ledger, Owner
from mappings.grammar import Record

BEGUN = "begun"
LEGACY: Mapping[str, Any] = {"at": "legacy"}
"""The facts of a mark."""
NOWHERE: Mapping[str, Any] = {"at": None}
"""What takes one away."""

Side = Literal["legacy", "current"]


class Begun:
    def __init__(self, ledger: Ledger, ids: Ids) -> None:
        self._ledger = ledger
        self._ids = ids

    async def mark(self, owner: Owner, batches: Iterable[str]) -> None:
        """They are at the legacy service from now on."""
        new = [one for one in batches if not await self._ledger.recall(owner, BEGUN, one)]
        if new:
            await self._ledger.record_all(owner, [Record(BEGUN, one, LEGACY) for one in new])

    async def unmark(self, owner: Owner, batches: Iterable[str]) -> None:
        """They are not there, or no more."""
        old = [one for one in batches if await self._ledger.recall(owner, BEGUN, one)]
        if old:
            await self._ledger.record_all(owner, [Record(BEGUN, one, NOWHERE) for one in old])

    async def side(self, owner: Owner, batch: str) -> Side | None:
        """Of a batch by any id that clients name it by; None of one that neither side touched."""
        if await self._ledger.recall(owner, BEGUN, batch):
            return "legacy"
        current = (await self._ids.current(owner, [batch])).get(batch, batch)
        # Begun there by the name that was imported since, and named otherwise now. Before any facts:
        # a change that was under way here meanwhile may have made some.
        name = (await self._ids.known(owner, {current})).get(current, batch)
        if name != batch and await self._ledger.recall(owner, BEGUN, name):
            return "legacy"
        facts = await self._ledger.recall(owner, "batch", current)
        if not facts:
            alias = await self._ledger.recall(owner, "alias", current)
            facts = await self._ledger.recall(owner, "batch", str(alias.get("id") or current))
            if alias.get("abandoned"):
                return "current"
        return "current" if facts and not is_as_imported(facts) else None


def is_as_imported(facts: Mapping[str, Any]) -> bool:
    """Whether a batch is the legacy service's as it was imported: every change counts it on."""
    imported = facts.get("imported")
    return imported is not None and (imported, "sent") == (facts.get("version"), facts.get("phase"))
