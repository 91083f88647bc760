"""Brownouts as the database has them, and whom they hit."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Any

from sqlalchemy import and_, bindparam, insert, select, update

from gateway.storage.audit_log import note
from gateway.storage.database import Transaction
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import brownout_hits, brownouts
from gateway.storage.tenants import Tenant

SCHEDULED, ENDED = "scheduled brownout", "switched off brownout"
"""How what is noted of them begins."""


@dataclass(frozen=True, slots=True)
class Brownout:
    """A window in which chosen requests are refused on purpose, or only counted.

    Empty names are every merchant, key or operation.
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
    """A key's requests of one operation that met a brownout."""

    brownout: str
    owner: Tenant
    key: str
    operation: str


def new_brownout(**fields: Any) -> Brownout:
    return Brownout(secrets.token_hex(4), **fields)


async def add_brownout(store: Store, one: Brownout) -> None:
    row = {name: getattr(one, name) for name in Brownout.__dataclass_fields__}
    new = insert(brownouts).values({**row, "operations": list(one.operations)})

    async def add(tx: Transaction) -> None:
        await tx.execute(new)
        await note(store, tx, f"{SCHEDULED} {one.id}", Tenant(one.merchant, ""))

    await store.write(add)


async def all_brownouts(store: Store) -> list[Brownout]:
    """Those to come, those under way and those that are over, the first first."""
    those = select(brownouts).order_by(brownouts.c.begins_at)
    return [_brownout(row) for row in await store.read(lambda tx: tx.fetch(those))]


async def open_brownouts(store: Store, now: datetime) -> list[Brownout]:
    """Those that are not over and were not switched off."""
    return [_brownout(row) for row in await store.read(lambda tx: tx.fetch(_OPEN, {"now": now}))]


_OPEN = Statement(
    lambda _kind: select(brownouts).where(
        brownouts.c.ends_at > bindparam("now"), brownouts.c.ended.is_(False)
    )
)


async def end_brownouts(store: Store, now: datetime, id_: str | None = None) -> int:
    """Switches one off, or every one that is not over; how many that were."""
    those = and_(brownouts.c.ends_at > now, brownouts.c.ended.is_(False))
    if id_ is not None:
        those = and_(those, brownouts.c.id == id_)

    async def end(tx: Transaction) -> int:
        count = await tx.execute(update(brownouts).where(those).values(ended=True))
        if count:
            await note(store, tx, f"{ENDED} {id_ or 'every one'}")
        return count

    return await store.write(end)


async def add_hits(store: Store, hits: Mapping[Hit, int]) -> None:
    if hits:
        rows = sorted((_row(hit, count) for hit, count in hits.items()), key=str)
        await store.write(lambda tx: tx.execute(_ADD_HITS, *rows))


def _add_hits(kind: ModuleType) -> Any:
    new = kind.insert(brownout_hits)
    keys = [column.name for column in brownout_hits.primary_key]
    more = {"requests": brownout_hits.c.requests + new.excluded.requests}
    return new.on_conflict_do_update(index_elements=keys, set_=more)


_ADD_HITS = Statement(_add_hits, [column.name for column in brownout_hits.c])


async def hits_of(store: Store) -> dict[str, dict[Hit, int]]:
    """By brownout."""
    found: dict[str, dict[Hit, int]] = {}
    for row in await store.read(lambda tx: tx.fetch(select(brownout_hits))):
        hit = Hit(row.brownout, Tenant(row.merchant, row.environment), row.key, row.operation)
        found.setdefault(row.brownout, {})[hit] = row.requests
    return found


def _row(hit: Hit, count: int) -> dict[str, Any]:
    named = {"brownout": hit.brownout, "key": hit.key, "operation": hit.operation}
    return {**named, **hit.owner._asdict(), "requests": count}


def _brownout(row: Any) -> Brownout:
    return Brownout(**{**row._asdict(), "operations": tuple(row.operations)})
