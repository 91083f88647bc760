"""Freezes: writes that an operator stopped, of a merchant, an environment, or all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, delete, insert, select, text

from gateway.storage.audit_log import note
from gateway.storage.tables import freezes
from gateway.storage.tenants import Tenant

if TYPE_CHECKING:
    from gateway.storage.database import Transaction
    from gateway.storage.store import Store

FROZE, UNFROZE = "froze", "unfroze"


@dataclass(frozen=True, slots=True)
class Freeze:
    """``scope`` has an empty merchant or environment for every one."""

    scope: Tenant
    since: datetime


async def freeze(store: Store, scope: Tenant) -> bool:
    """From when this returns no write begins there; False where none could already."""

    async def freeze(tx: Transaction) -> bool:
        # Waits for whoever has looked at the table and not committed: whatever begins from now on
        # sees the freeze.
        if tx.dialect == "postgresql":
            await tx.execute(text("LOCK TABLE freezes IN ACCESS EXCLUSIVE MODE"))
        if await tx.fetch(select(freezes).where(_is(scope))):
            return False
        await tx.execute(insert(freezes).values(**scope._asdict(), since=store.clock()))
        await note(store, tx, FROZE, scope)
        return True

    return await store.write(freeze)


async def unfreeze(store: Store, scope: Tenant) -> bool:
    """Ends the freeze of just this scope; False where there is none. Others stay."""

    async def unfreeze(tx: Transaction) -> bool:
        is_ended = bool(await tx.execute(delete(freezes).where(_is(scope))))
        if is_ended:
            await note(store, tx, UNFROZE, scope)
        return is_ended

    return await store.write(unfreeze)


async def frozen(store: Store) -> list[Freeze]:
    """Every freeze, the widest first."""
    those = select(freezes).order_by(freezes.c.merchant, freezes.c.environment)
    rows = await store.read(lambda tx: tx.fetch(those))
    return [Freeze(Tenant(row.merchant, row.environment), row.since) for row in rows]


def _is(scope: Tenant) -> ColumnElement[bool]:
    return and_(freezes.c.merchant == scope.merchant, freezes.c.environment == scope.environment)
