"""Freezes: an operator stops the writes of a merchant, an environment, or everything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, delete, select, text

from gateway.storage.audit_log import record_audit_event
from gateway.storage.object_state import upsert_row
from gateway.storage.tables import freezes
from gateway.storage.tenants import Tenant

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.store import Store

WRITES_FROZEN, WRITES_UNFROZEN = "froze", "unfroze"


@dataclass(frozen=True, slots=True)
class Freeze:
    """A stop of writes; an empty merchant or environment in ``scope`` stands for all."""

    scope: Tenant
    since: datetime


async def freeze_writes(store: Store, scope: Tenant) -> bool:
    """Freezes a scope; no write starts there after this returns. False if it was frozen already."""
    async with store.write() as connection:
        # The lock waits for transactions that have read the table and not committed, so that every
        # write that starts after it sees the freeze.
        if connection.dialect.name == "postgresql":
            await connection.execute(text("LOCK TABLE freezes IN ACCESS EXCLUSIVE MODE"))
        if await _is_frozen(connection, scope):
            return False
        await upsert_row(connection, freezes, scope._asdict(), {"since": store.clock()})
        await record_audit_event(store, connection, WRITES_FROZEN, scope)
        return True


async def unfreeze_writes(store: Store, scope: Tenant) -> bool:
    """Ends the freeze of exactly this scope; False if there is none. Wider freezes stay."""
    async with store.write() as connection:
        result = await connection.execute(delete(freezes).where(_is_scope(scope)))
        if result.rowcount:
            await record_audit_event(store, connection, WRITES_UNFROZEN, scope)
        return bool(result.rowcount)


async def list_freezes(store: Store) -> list[Freeze]:
    """Lists every freeze, widest first."""
    query = select(freezes).order_by(freezes.c.merchant, freezes.c.environment)
    async with store.read() as connection:
        rows = await connection.execute(query)
        return [Freeze(Tenant(row.merchant, row.environment), row.since) for row in rows]


async def _is_frozen(connection: AsyncConnection, scope: Tenant) -> bool:
    return (await connection.execute(select(freezes).where(_is_scope(scope)))).first() is not None


def _is_scope(scope: Tenant) -> ColumnElement[bool]:
    return and_(freezes.c.merchant == scope.merchant, freezes.c.environment == scope.environment)
