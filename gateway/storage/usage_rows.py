"""Who used which operation, how often and when: by key, operation and day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from types import ModuleType
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql

from gateway.storage.database import Transaction
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import usage
from gateway.storage.traffic_rows import Span, Traffic, add_traffic


@dataclass(frozen=True, slots=True)
class Use:
    """``key`` is the name of the key, empty for requests with none that is known; ``operation``
    is empty for paths that are none.
    """

    merchant: str
    environment: str
    key: str
    operation: str
    day: date


@dataclass(slots=True)
class Count:
    """Requests, and those of them answered 4xx and 5xx; milliseconds in all, and at the service."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    ms: int = 0
    service_ms: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None


_SUMS = ("requests", "refused", "failed", "ms", "service_ms")


async def add_usage(
    store: Store, counts: Mapping[Use, Count], carried: Mapping[Span, Traffic] | None = None
) -> None:
    """Adds to what was counted before; all of it or none. StoreUnavailable."""
    if not counts:
        return
    # In one order everywhere: two instances adding to the same rows must not wait in a ring.
    rows = sorted((_row(use, count) for use, count in counts.items()), key=_keys)

    async def add(tx: Transaction) -> None:
        await add_traffic(tx, carried or {})
        await tx.execute(_ADD, *rows)

    await store.write(add)


def _adding(kind: ModuleType) -> Any:
    least, most = (func.least, func.greatest) if kind is postgresql else (func.min, func.max)
    new = kind.insert(usage)
    sums: dict[str, Any] = {name: usage.c[name] + new.excluded[name] for name in _SUMS}
    sums["first_at"] = least(usage.c.first_at, new.excluded.first_at)
    sums["last_at"] = most(usage.c.last_at, new.excluded.last_at)
    keys = [column.name for column in usage.primary_key]
    return new.on_conflict_do_update(index_elements=keys, set_=sums)


_ADD = Statement(_adding, [column.name for column in usage.c])


def _row(use: Use, count: Count) -> dict[str, Any]:
    counted = {name: getattr(count, name) for name in (*_SUMS, "first_at", "last_at")}
    return {**{name: getattr(use, name) for name in Use.__dataclass_fields__}, **counted}


def _keys(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in Use.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Used:
    """What a key made of an operation since a day; answered 4xx are ``refused``, 5xx ``failed``."""

    merchant: str
    environment: str
    key: str
    operation: str
    requests: int
    refused: int
    failed: int
    first_at: datetime
    last_at: datetime

    @property
    def error_rate(self) -> float:
        """The part of the requests that was answered 4xx or 5xx, with four decimals."""
        return round((self.refused + self.failed) / self.requests, 4)


async def used_since(store: Store, since: date | None = None) -> list[Used]:
    """By merchant, environment, key and operation; StoreUnavailable."""
    named = (usage.c.merchant, usage.c.environment, usage.c.key, usage.c.operation)
    sums = [func.sum(usage.c[name]).label(name) for name in ("requests", "refused", "failed")]
    first = func.min(usage.c.first_at, type_=usage.c.first_at.type).label("first_at")
    last = func.max(usage.c.last_at, type_=usage.c.last_at.type).label("last_at")
    asked = select(*named, *sums, first, last).group_by(*named).order_by(*named)
    if since:
        asked = asked.where(usage.c.day >= since)
    return [_used(row) for row in await store.read(lambda tx: tx.fetch(asked))]


def _used(row: Any) -> Used:
    values = row._asdict()
    return Used(
        **{**values, **{name: int(values[name]) for name in ("requests", "refused", "failed")}}
    )


@dataclass(frozen=True, slots=True)
class Day:
    """One day: requests of an operation, and by how many keys of it."""

    day: date
    operation: str
    requests: int
    keys: int


async def used_by_day(store: Store, since: date) -> list[Day]:
    """By day and operation, of requests with an owner that is known; StoreUnavailable."""
    requests = func.sum(usage.c.requests).label("requests")
    keys = func.count(usage.c.key.distinct()).label("keys")
    asked = (
        select(usage.c.day, usage.c.operation, requests, keys)
        .where(usage.c.day >= since, usage.c.merchant != "")
        .group_by(usage.c.day, usage.c.operation)
        .order_by(usage.c.day, usage.c.operation)
    )
    rows = await store.read(lambda tx: tx.fetch(asked))
    return [Day(row.day, row.operation, int(row.requests), int(row.keys)) for row in rows]
