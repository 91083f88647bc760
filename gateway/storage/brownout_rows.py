"""Brownouts in the database, and counters of the requests that they affected."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from gateway.storage.audit_log import note
from gateway.storage.statements import Statement, Transaction, rows_of
from gateway.storage.store import Store
from gateway.storage.tables import brownout_hits, brownouts
from gateway.storage.tenants import Tenant

SCHEDULED, ENDED = "scheduled brownout", "switched off brownout"
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

    def meets(self, merchant: str, key: str, operation: str, now: datetime) -> bool:
        return (
            self.begins_at <= now < self.ends_at
            and self.merchant in ("", merchant)
            and self.key in ("", key)
            and (not self.operations or operation in self.operations)
        )


@dataclass(frozen=True, slots=True)
class Hit:
    """What affected requests are counted by: brownout, key and operation."""

    brownout: str
    owner: Tenant
    key: str
    operation: str


def new_brownout(**fields: Any) -> Brownout:
    return Brownout(secrets.token_hex(4), **fields)


async def add_brownout(store: Store, one: Brownout) -> None:
    row = {name: getattr(one, name) for name in Brownout.__dataclass_fields__}
    async with store.write() as connection:
        await connection.execute(
            insert(brownouts).values({**row, "operations": list(one.operations)})
        )
        await note(store, connection, f"{SCHEDULED} {one.id}", Tenant(one.merchant, ""))


async def all_brownouts(store: Store) -> list[Brownout]:
    """Lists all brownouts, planned, active and past, earliest first."""
    async with store.read() as connection:
        rows = await connection.execute(select(brownouts).order_by(brownouts.c.begins_at))
        return [_brownout(row) for row in rows.mappings()]


async def open_brownouts(store: Store, now: datetime) -> list[Brownout]:
    """Lists the brownouts that have not ended."""
    rows = await store.looked_up(Transaction(lambda: rows_of(_OPEN, {"now": now})))
    names = [column.name for column in brownouts.c]
    return [_brownout(dict(zip(names, row, strict=True))) for row in rows]


_OPEN = Statement(
    lambda _kind: select(brownouts).where(
        brownouts.c.ends_at > bindparam("now"), brownouts.c.ended.is_(False)
    )
)


async def end_brownouts(store: Store, now: datetime, id_: str | None = None) -> int:
    """Ends one brownout, or all that have not ended; returns how many."""
    those = and_(brownouts.c.ends_at > now, brownouts.c.ended.is_(False))
    if id_ is not None:
        those = and_(those, brownouts.c.id == id_)
    async with store.write() as connection:
        done = await connection.execute(update(brownouts).where(those).values(ended=True))
        if done.rowcount:
            await note(store, connection, f"{ENDED} {id_ or 'every one'}")
        return int(done.rowcount)


async def add_hits(store: Store, hits: Mapping[Hit, int]) -> None:
    if not hits:
        return
    async with store.write() as connection:
        new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(
            brownout_hits
        )
        keys = [column.name for column in brownout_hits.primary_key]
        more = {"requests": brownout_hits.c.requests + new.excluded.requests}
        rows = sorted((_row(hit, count) for hit, count in hits.items()), key=str)
        await connection.execute(new.on_conflict_do_update(index_elements=keys, set_=more), rows)


async def hits_of(store: Store) -> dict[str, dict[Hit, int]]:
    """Loads the counters by brownout id."""
    found: dict[str, dict[Hit, int]] = {}
    async with store.read() as connection:
        for row in await connection.execute(select(brownout_hits)):
            hit = Hit(row.brownout, Tenant(row.merchant, row.environment), row.key, row.operation)
            found.setdefault(row.brownout, {})[hit] = row.requests
    return found


def _row(hit: Hit, count: int) -> dict[str, Any]:
    named = {"brownout": hit.brownout, "key": hit.key, "operation": hit.operation}
    return {**named, **hit.owner._asdict(), "requests": count}


def _brownout(values: Any) -> Brownout:
    return Brownout(**{**values, "operations": tuple(values["operations"])})
