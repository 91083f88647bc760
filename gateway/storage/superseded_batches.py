"""Superseded batches: batches that still exist at the service and that clients no longer see.

If the service cannot edit or delete a batch, the gateway replaces it and never starts the old one,
but a person can still start it in the service's dashboard, which would pay twice. The same holds
for a batch whose ``POST /batches`` had no response from a service that does not list batches.
"""

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import select, text

from gateway.storage.id_rows import load_legacy_ids
from gateway.storage.object_state import ObjectStateStore
from gateway.storage.state_tables import IS_SUPERSEDED, id_redirects
from gateway.storage.store import Store
from gateway.storage.tables import UNSEEN_BATCH_CONDITION, operations, upstream_writes
from gateway.storage.tenants import Tenant
from mappings.signed_writes import CHANGE

NEVER_START_ADVICE = "never start it"


@dataclass(frozen=True, slots=True)
class SupersededBatch:
    """A superseded batch, or one that may exist.

    ``batch_id`` is the id that clients use, ``upstream_id`` the service's id of the superseded
    batch. Both are None for a batch that may exist, which request ``request_id`` sent at ``since``.
    """

    tenant: Tenant
    batch_id: str | None
    upstream_id: str | None
    since: datetime
    is_deleted: bool
    """Whether the client deleted the batch; otherwise it uses the replacement under the same id."""
    started_at: str | None = None
    """When it was started outside the gateway, if that is known."""
    request_id: str | None = None

    @property
    def advice(self) -> str:
        """Advice for an operator."""
        if self.upstream_id is None:
            when = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
            return (
                f"request {self.request_id} got no response, and the service may have created its "
                "batch: "
                f"look in the dashboard for a batch created at about {when} whose id "
                f"`payout-gateway trace` does not know; delete it or leave it; {NEVER_START_ADVICE}"
            )
        if self.started_at:
            return (
                f"it was started outside the gateway ({self.started_at}): check in the dashboard "
                "what it pays, and ask support to stop it; the gateway does not start the batch of "
                "its client"
            )
        reason = "its client deleted it" if self.is_deleted else "its client uses a replacement"
        return f"delete it in the dashboard or leave it; {NEVER_START_ADVICE}: {reason}"


async def list_superseded_batches(store: Store) -> list[SupersededBatch]:
    """Lists the superseded batches of all tenants, oldest first; raises StoreUnavailable."""
    object_state = ObjectStateStore(store)
    # Writes whose outcome nobody can read have no mark in the object state.
    superseded = await _list_batches_that_may_exist(store)
    table = id_redirects.c
    tenant_columns = (table.merchant, table.environment)
    query = select(*tenant_columns, table.id, table.updated_at, table.started_at).where(
        text(IS_SUPERSEDED)
    )
    marks = await store.fetch(query.order_by(*tenant_columns))
    for tenant, rows in groupby(marks, key=lambda row: Tenant(row.merchant, row.environment)):
        batches = await object_state.load_facts_by_id(tenant, "batch")
        legacy_ids = await load_legacy_ids(store, tenant, batches)
        ids_by_upstream_id = {
            upstream_id: id_
            for id_, facts in batches.items()
            for upstream_id in facts.get("abandoned", [])
        }
        for row in rows:
            id_ = ids_by_upstream_id.get(row.id, "")
            is_deleted = batches.get(id_, {}).get("phase") == "deleted"
            legacy_id = legacy_ids.get(id_, id_) or None
            superseded.append(
                SupersededBatch(
                    tenant, legacy_id, row.id, row.updated_at, is_deleted, started_at=row.started_at
                )
            )
    return sorted(superseded, key=lambda batch: (batch.since, batch.upstream_id or ""))


async def _list_batches_that_may_exist(store: Store) -> list[SupersededBatch]:
    query = select(
        upstream_writes.c.merchant,
        upstream_writes.c.environment,
        upstream_writes.c.recorded_at,
        operations.c.request_id,
    ).join_from(upstream_writes, operations, operations.c.id == upstream_writes.c.operation_id)
    # A signed write is for its client to look for, who may also start what it has created.
    is_unsigned = operations.c.operation != CHANGE.name
    query = query.where(text(f"upstream_writes.{UNSEEN_BATCH_CONDITION}"), is_unsigned)
    return [
        SupersededBatch(
            Tenant(row.merchant, row.environment),
            None,
            None,
            row.recorded_at,
            is_deleted=False,
            request_id=row.request_id,
        )
        for row in await store.fetch(query)
    ]
