"""Brownouts in the database, and counters of the requests that they affected."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.storage.audit_log import record_audit_event
from gateway.storage.statements import Statement, Transaction, rows_of
from gateway.storage.store import Store
from gateway.storage.tables import brownout_hits, brownouts
from gateway.storage.tenants import Tenant

SCHEDULED_PREFIX, ENDED_PREFIX = "scheduled brownout", "switched off brownout"
"""The beginning of their audit log entries."""


@dataclass(frozen=True, slots=True)
class Brownout:
    """A planned window in which selected requests are refused, or only counted.

    An empty merchant, key or list of operations stands for all.
    """

    id: str
    begins_at: datetime
    ends_at: datetime
    merchant: str = ""
    key: str = ""
    operations: tuple[str, ...] = ()
    refuses: bool = True
    ended: bool = False

    def is_match(self, merchant: str, key: str, operation: str, now: datetime) -> bool:
        return (
            self.begins_at <= now < self.ends_at
            and self.merchant in ("", merchant)
            and self.key in ("", key)
            and (not self.operations or operation in self.operations)
        )


@dataclass(frozen=True, slots=True)
class BrownoutHit:
    """What affected requests are counted by: brownout, key and operation."""

    brownout: str
    tenant: Tenant
    key: str
    operation: str


def build_brownout(**fields: Any) -> Brownout:
    return Brownout(secrets.token_hex(4), **fields)


async def save_brownout(store: Store, brownout: Brownout) -> None:
    row = {name: getattr(brownout, name) for name in Brownout.__dataclass_fields__}
    async with store.write() as connection:
        await connection.execute(
            insert(brownouts).values({**row, "operations": list(brownout.operations)})
        )
        await record_audit_event(
            store, connection, f"{SCHEDULED_PREFIX} {brownout.id}", Tenant(brownout.merchant, "")
        )


async def list_brownouts(store: Store) -> list[Brownout]:
    """Lists all brownouts, planned, active and past, earliest first."""
    async with store.read() as connection:
        rows = await connection.execute(select(brownouts).order_by(brownouts.c.begins_at))
        return [_parse_brownout(row) for row in rows.mappings()]


async def list_open_brownouts(store: Store, now: datetime) -> list[Brownout]:
    """Lists the brownouts that have not ended."""
    rows = await store.looked_up(Transaction(lambda: rows_of(_SELECT_OPEN, {"now": now})))
    names = [column.name for column in brownouts.c]
    return [_parse_brownout(dict(zip(names, row, strict=True))) for row in rows]


_SELECT_OPEN = Statement(
    lambda _kind: select(brownouts).where(
        brownouts.c.ends_at > bindparam("now"), brownouts.c.ended.is_(False)
    )
)


async def end_brownouts(store: Store, now: datetime, id_: str | None = None) -> int:
    """Ends one brownout, or all that have not ended; returns how many."""
    is_open = and_(brownouts.c.ends_at > now, brownouts.c.ended.is_(False))
    if id_ is not None:
        is_open = and_(is_open, brownouts.c.id == id_)
    async with store.write() as connection:
        result = await connection.execute(update(brownouts).where(is_open).values(ended=True))
        if result.rowcount:
            await record_audit_event(store, connection, f"{ENDED_PREFIX} {id_ or 'every one'}")
        return int(result.rowcount)


async def save_hits(store: Store, hits: Mapping[BrownoutHit, int]) -> None:
    if not hits:
        return
    async with store.write() as connection:
        new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(
            brownout_hits
        )
        keys = [column.name for column in brownout_hits.primary_key]
        updates = {"requests": brownout_hits.c.requests + new.excluded.requests}
        rows = sorted((_build_hit_row(hit, count) for hit, count in hits.items()), key=str)
        await connection.execute(new.on_conflict_do_update(index_elements=keys, set_=updates), rows)


async def load_hits(store: Store) -> dict[str, dict[BrownoutHit, int]]:
    """Loads the counters by brownout id."""
    hits: dict[str, dict[BrownoutHit, int]] = {}
    async with store.read() as connection:
        for row in await connection.execute(select(brownout_hits)):
            hit = BrownoutHit(
                row.brownout, Tenant(row.merchant, row.environment), row.key, row.operation
            )
            hits.setdefault(row.brownout, {})[hit] = row.requests
    return hits


def _build_hit_row(hit: BrownoutHit, count: int) -> dict[str, Any]:
    columns = {"brownout": hit.brownout, "key": hit.key, "operation": hit.operation}
    return {**columns, **hit.tenant._asdict(), "requests": count}


def _parse_brownout(values: Any) -> Brownout:
    return Brownout(**{**values, "operations": tuple(values["operations"])})
