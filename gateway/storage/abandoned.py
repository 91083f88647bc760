"""Batches that the service still has, or may have, and that clients do not see any more.

Where the service has no operation to edit or delete a batch, the gateway leaves the one that it has
and never starts it; in the service's dashboard it can still be started by hand. So can one whose
``POST /batches`` was not answered by a service that lists none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select, text

from gateway.storage.ledger import Ledger
from gateway.storage.tables import IS_ABANDONED, IS_UNSEEN, journal, remembered, writes
from gateway.storage.tenants import Tenant

if TYPE_CHECKING:
    from gateway.storage.store import Store


NEVER_START = "never start it"


@dataclass(frozen=True, slots=True)
class AbandonedBatch:
    """``batch`` is the id that clients know, ``upstream`` the service's id of what was left; None of one
    that may exist, which was asked for at ``since`` by the request ``asked_by``.
    """

    owner: Tenant
    batch: str | None
    upstream: str | None
    since: datetime
    is_deleted: bool
    """Whether clients deleted the batch, or go on with it under its id."""
    asked_by: str | None = None

    @property
    def to_do(self) -> str:
        """In words for an operator."""
        if self.upstream is None:
            when = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
            return (
                f"request {self.asked_by} was not answered, and the service may have made its batch: "
                f"look in the dashboard for one made at about {when} whose id `payout-gateway trace` "
                f"does not know; delete it or leave it; {NEVER_START}"
            )
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
    found += await _that_may_exist(store)
    return sorted(found, key=lambda one: (one.since, one.upstream or ""))


async def _that_may_exist(store: Store) -> list[AbandonedBatch]:
    its = select(
        writes.c.merchant, writes.c.environment, writes.c.entered_at, journal.c.request_id
    ).join_from(writes, journal, journal.c.id == writes.c.undertaking)
    unseen = its.where(text(f"writes.{IS_UNSEEN}"))
    return [
        AbandonedBatch(
            Tenant(row.merchant, row.environment),
            None,
            None,
            row.entered_at,
            is_deleted=False,
            asked_by=row.request_id,
        )
        for row in await store.read(lambda tx: tx.fetch(unseen))
    ]


async def _marks(store: Store) -> dict[tuple[Tenant, str], datetime]:
    """Every batch that is marked as abandoned, and when it was."""
    table = remembered.c
    marked = select(table.merchant, table.environment, table.id, table.updated_at)
    marked = marked.where(text(IS_ABANDONED))
    rows = await store.read(lambda tx: tx.fetch(marked))
    return {(Tenant(row.merchant, row.environment), row.id): row.updated_at for row in rows}
