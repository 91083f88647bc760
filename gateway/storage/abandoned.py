"""Superseded batches: batches that still exist at the service and that clients no longer see.

If the service cannot edit or delete a batch, the gateway replaces it and never starts the old one,
but a person can still start it in the service's dashboard, which would pay twice. The same holds for
a batch whose ``POST /batches`` had no response from a service that does not list batches.
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
    """A superseded batch, or one that may exist.

    ``batch_id`` is the id that clients use, ``upstream_id`` the service's id of the superseded batch.
    Both are None for a batch that may exist, which request ``request_id`` sent at ``since``.
    """

    owner: Tenant
    batch: str | None
    upstream: str | None
    since: datetime
    is_deleted: bool
    """Whether the client deleted the batch; otherwise it uses the replacement under the same id."""
    asked_by: str | None = None

    @property
    def to_do(self) -> str:
        """Advice for an operator."""
        if self.upstream is None:
            when = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
            return (
                f"request {self.asked_by} got no response, and the service may have created its batch: "
                f"look in the dashboard for a batch created at about {when} whose id "
                f"`payout-gateway trace` does not know; delete it or leave it; {NEVER_START}"
            )
        why = "its client deleted it" if self.is_deleted else "its client uses a replacement"
        return f"delete it in the dashboard or leave it; {NEVER_START}: {why}"


async def abandoned_batches(store: Store) -> list[AbandonedBatch]:
    """Lists the superseded batches of all tenants, oldest first; raises StoreUnavailable."""
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
    async with store.read() as connection:
        rows = await connection.execute(its.where(text(f"writes.{IS_UNSEEN}")))
        return [
            AbandonedBatch(
                Tenant(row.merchant, row.environment),
                None,
                None,
                row.entered_at,
                is_deleted=False,
                asked_by=row.request_id,
            )
            for row in rows
        ]


async def _marks(store: Store) -> dict[tuple[Tenant, str], datetime]:
    """Loads every batch that is marked as superseded, and the time of the mark."""
    table = remembered.c
    marked = select(table.merchant, table.environment, table.id, table.updated_at)
    async with store.read() as connection:
        rows = await connection.execute(marked.where(text(IS_ABANDONED)))
        return {(Tenant(row.merchant, row.environment), row.id): row.updated_at for row in rows}
