"""Usage statistics by API key, operation and day."""

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
from gateway.storage.traffic_rows import Span, Traffic, add_traffic_counts


@dataclass(frozen=True, slots=True)
class UsageKey:
    """The key by which usage is counted.

    ``key`` is the name of the API key, empty for requests without a known one; ``operation`` is
    empty for paths that match no operation.
    """

    merchant: str
    environment: str
    key: str
    operation: str
    day: date


@dataclass(slots=True)
class UsageCounts:
    """Requests, those answered 4xx (``refused``) or 5xx (``failed``), and milliseconds."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    ms: int = 0
    service_ms: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None


_SUMS = ("requests", "refused", "failed", "ms", "service_ms")


async def add_usage_and_traffic_counts(
    store: Store,
    counts: Mapping[UsageKey, UsageCounts],
    traffic_by_span: Mapping[Span, Traffic] | None = None,
) -> None:
    """Adds usage and traffic to the stored counters in one transaction.

    Raises StoreUnavailable.
    """
    if not counts:
        return
    # Always in the same order: two instances that update the same rows must not deadlock.
    rows = sorted(
        (_build_usage_row(use, count) for use, count in counts.items()), key=_build_sort_key
    )

    async def upsert_rows(tx: Transaction) -> None:
        await add_traffic_counts(tx, traffic_by_span or {})
        await tx.execute(_UPSERT, *rows)

    await store.write(upsert_rows)


def _build_upsert(kind: ModuleType) -> Any:
    minimum, maximum = (func.least, func.greatest) if kind is postgresql else (func.min, func.max)
    new = kind.insert(usage)
    sums: dict[str, Any] = {name: usage.c[name] + new.excluded[name] for name in _SUMS}
    sums["first_at"] = minimum(usage.c.first_at, new.excluded.first_at)
    sums["last_at"] = maximum(usage.c.last_at, new.excluded.last_at)
    keys = [column.name for column in usage.primary_key]
    return new.on_conflict_do_update(index_elements=keys, set_=sums)


_UPSERT = Statement(_build_upsert, [column.name for column in usage.c])


def _build_usage_row(use: UsageKey, count: UsageCounts) -> dict[str, Any]:
    values = {name: getattr(count, name) for name in (*_SUMS, "first_at", "last_at")}
    return {**{name: getattr(use, name) for name in UsageKey.__dataclass_fields__}, **values}


def _build_sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in UsageKey.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Usage of an operation by a key; ``refused`` were answered 4xx, ``failed`` 5xx."""

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
        """Share of requests answered 4xx or 5xx, rounded to four decimals."""
        return round((self.refused + self.failed) / self.requests, 4)


async def load_usage_summaries(store: Store, since: date | None = None) -> list[UsageSummary]:
    """Loads usage by merchant, environment, key and operation; raises StoreUnavailable."""
    columns = (usage.c.merchant, usage.c.environment, usage.c.key, usage.c.operation)
    sums = [func.sum(usage.c[name]).label(name) for name in ("requests", "refused", "failed")]
    # With the column's type, which an aggregate does not have on SQLite.
    first = func.min(usage.c.first_at, type_=usage.c.first_at.type).label("first_at")
    last = func.max(usage.c.last_at, type_=usage.c.last_at.type).label("last_at")
    query = select(*columns, *sums, first, last).group_by(*columns).order_by(*columns)
    if since:
        query = query.where(usage.c.day >= since)
    return [_parse_summary(row) for row in await store.read(lambda tx: tx.fetch(query))]


def _parse_summary(row: Any) -> UsageSummary:
    values = row._asdict()
    return UsageSummary(
        **{**values, **{name: int(values[name]) for name in ("requests", "refused", "failed")}}
    )


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """Requests of an operation on one day, and the number of keys that sent them."""

    day: date
    operation: str
    requests: int
    keys: int


async def load_daily_usage(store: Store, since: date) -> list[DailyUsage]:
    """Loads usage by day and operation; raises StoreUnavailable.

    Requests without a known merchant are not counted.
    """
    requests = func.sum(usage.c.requests).label("requests")
    keys = func.count(usage.c.key.distinct()).label("keys")
    query = (
        select(usage.c.day, usage.c.operation, requests, keys)
        .where(usage.c.day >= since, usage.c.merchant != "")
        .group_by(usage.c.day, usage.c.operation)
        .order_by(usage.c.day, usage.c.operation)
    )
    rows = await store.read(lambda tx: tx.fetch(query))
    return [DailyUsage(row.day, row.operation, int(row.requests), int(row.keys)) for row in rows]
