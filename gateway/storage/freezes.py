"""Freezes: an operator stops the writes of a merchant, an environment, or everything."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select, text

from gateway.storage.audit_log import list_audit_events, record_audit_event
from gateway.storage.database import Transaction
from gateway.storage.store import Store
from gateway.storage.tables import freezes
from gateway.storage.tenants import Tenant

WRITES_FROZEN, WRITES_UNFROZEN = "froze", "unfroze"


@dataclass(frozen=True, slots=True)
class Freeze:
    """A stop of writes; an empty merchant or environment in ``scope`` stands for all."""

    scope: Tenant
    since: datetime
    reason: str = ""
    """In brackets, after a space; empty if an operator set it."""


async def freeze_writes(store: Store, scope: Tenant, reason: str = "") -> bool:
    """Freezes a scope; no write starts there after this returns. False if it was frozen already.

    The audit log shows the reason.
    """
    action = f"{WRITES_FROZEN} ({reason})" if reason else WRITES_FROZEN

    async def insert_freeze(tx: Transaction) -> bool:
        # The lock waits for transactions that have read the table and not committed, so that every
        # write that starts after it sees the freeze.
        if tx.dialect == "postgresql":
            await tx.execute(text("LOCK TABLE freezes IN ACCESS EXCLUSIVE MODE"))
        if await tx.fetch(select(freezes).filter_by(**scope._asdict())):
            return False
        await tx.execute(insert(freezes).values(**scope._asdict(), since=store.clock()))
        await record_audit_event(store, tx, action, scope)
        return True

    return await store.write(insert_freeze)


async def unfreeze_writes(store: Store, scope: Tenant) -> bool:
    """Ends the freeze of exactly this scope; False if there is none. Wider freezes stay."""

    async def delete_freeze(tx: Transaction) -> bool:
        is_ended = bool(await tx.execute(delete(freezes).filter_by(**scope._asdict())))
        if is_ended:
            await record_audit_event(store, tx, WRITES_UNFROZEN, scope)
        return is_ended

    return await store.write(delete_freeze)


async def list_freezes(store: Store) -> list[Freeze]:
    """Lists every freeze, widest first."""
    query = select(freezes).order_by(freezes.c.merchant, freezes.c.environment)
    rows = await store.fetch(query)
    events = await list_audit_events(store, prefixes=(WRITES_FROZEN,)) if rows else []
    # The last event of a scope is that of its active freeze.
    reasons = {event.scope: event.action.removeprefix(WRITES_FROZEN) for event in events}
    scopes = [(Tenant(row.merchant, row.environment), row.since) for row in rows]
    return [Freeze(scope, since, reasons.get(scope, "")) for scope, since in scopes]
