"""Brownouts in the database."""

import secrets
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, insert, select, update

from gateway.storage.audit_log import record_audit_event
from gateway.storage.change_poller import increment_change_count
from gateway.storage.database import Transaction
from gateway.storage.store import Store
from gateway.storage.tables import brownouts
from gateway.storage.tenants import Tenant

CHANGES = "brownouts"
"""The name of their change count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brownout:
    """A planned window in which selected requests are refused.

    An empty merchant, key or list of operations stands for all.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(4))
    begins_at: datetime
    ends_at: datetime
    merchant: str = ""
    key: str = ""
    operations: tuple[str, ...] = ()
    ended: bool = False

    def is_match(self, merchant: str, key: str, operation: str, now: datetime) -> bool:
        return (
            self.begins_at <= now < self.ends_at
            and self.merchant in ("", merchant)
            and self.key in ("", key)
            and (not self.operations or operation in self.operations)
        )


async def insert_brownout(store: Store, brownout: Brownout) -> None:
    row = {**asdict(brownout), "operations": list(brownout.operations)}

    async def insert_row(tx: Transaction) -> None:
        await increment_change_count(tx, CHANGES)
        await tx.execute(insert(brownouts).values(row))
        await _record_action(store, tx, "scheduled", brownout)

    await store.write(insert_row)


async def _record_action(store: Store, tx: Transaction, verb: str, brownout: Brownout) -> None:
    operations = ", ".join(brownout.operations) or "every operation"
    keys = f"key {brownout.key}" if brownout.key else "every key"
    action = f"{verb} brownout {brownout.id} of {keys}: {operations}"
    await record_audit_event(store, tx, action, Tenant(brownout.merchant, ""))


async def list_brownouts(store: Store) -> list[Brownout]:
    """Lists all brownouts, planned, active and past, earliest first."""
    query = select(brownouts).order_by(brownouts.c.begins_at)
    return [_parse_brownout(row) for row in await store.fetch(query)]


async def list_planned_and_active_brownouts(store: Store, now: datetime) -> list[Brownout]:
    """Lists the brownouts that have not ended."""
    query = select(brownouts).where(_build_open_condition(now))
    return [_parse_brownout(row) for row in await store.fetch(query)]


def _build_open_condition(now: datetime) -> ColumnElement[bool]:
    return and_(brownouts.c.ends_at > now, brownouts.c.ended.is_(False))


async def end_brownouts(store: Store, now: datetime, id_: str | None = None) -> int:
    """Ends one brownout, or all that have not ended; returns how many."""
    is_open = _build_open_condition(now)
    if id_ is not None:
        is_open = and_(is_open, brownouts.c.id == id_)

    async def update_rows(tx: Transaction) -> int:
        await increment_change_count(tx, CHANGES)
        rows = await tx.fetch(select(brownouts).where(is_open))
        await tx.execute(update(brownouts).where(is_open).values(ended=True))
        for row in rows:
            await _record_action(store, tx, "switched off", _parse_brownout(row))
        return len(rows)

    return await store.write(update_rows)


def _parse_brownout(row: Any) -> Brownout:
    return Brownout(**{**row._asdict(), "operations": tuple(row.operations)})
