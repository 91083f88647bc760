"""Batches that the service still has and that clients do not see any more.

Where the service has no operation to edit or delete a batch, the gateway leaves the one that it has
and never starts it; in the service's dashboard it can still be started by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select, text

from gateway.store.ledger import Ledger
from gateway.store.owners import Owner
from gateway.store.tables import IS_ABANDONED, remembered

if TYPE_CHECKING:
    from gateway.store.store import Store


NEVER_START = "never start it"


@dataclass(frozen=True, slots=True)
class AbandonedBatch:
    """``batch`` is the id that clients know, ``upstream`` the service's id of what was left."""

    owner: Owner
    batch: str | None
    upstream: str
    since: datetime
    is_deleted: bool
    """Whether clients deleted the batch, or go on with it under its id."""

    @property
    def to_do(self) -> str:
        """In words for an operator."""
        why = "its client deleted it" if self.is_deleted else "its client goes on with another"
        return f"delete it in the dashboard or leave it; {NEVER_START}: {why}"


async def abandoned_batches(store: Store) -> list[AbandonedBatch]:
    """Those of every merchant and environment, the longest abandoned first; StoreUnavailable."""
    ledger = Ledger(store)
    found: list[AbandonedBatch] = []
    marks = await _marks(store)
    for owner in sorted({owner for owner, _upstream in marks}):
        batches = await ledger.recall_all(owner, "batch")
        names = await ledger.legacy_ids(owner, batches)
        left = {one: id_ for id_, facts in batches.items() for one in facts.get("abandoned", [])}
        for (its, upstream), since in marks.items():
            if its == owner:
                id_ = left.get(upstream)
                gone = batches.get(id_ or "", {}).get("phase") == "deleted"
                known = names.get(id_, id_) if id_ else None
                found.append(AbandonedBatch(owner, known, upstream, since, gone))
    return sorted(found, key=lambda one: (one.since, one.upstream))


async def _marks(store: Store) -> dict[tuple[Owner, str], datetime]:
    """Every batch that is marked as abandoned, and when it was."""
    table = remembered.c
    marked = select(table.merchant, table.environment, table.id, table.updated_at)
    async with store.read() as connection:
        rows = await connection.execute(marked.where(text(IS_ABANDONED)))
        return {(Owner(row.merchant, row.environment), row.id): row.updated_at for row in rows}
