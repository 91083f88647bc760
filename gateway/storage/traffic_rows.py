"""The last days of traffic, by spans of five minutes, merchant and operation: what plots are made of.

Usage (``usage_rows``) tells by days who used what, for as long as the configuration says. This is
the finer and shorter memory beside it: ``KEPT`` and no longer, so at most 576 rows of a merchant
and operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Protocol

from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql

from gateway.storage.database import Transaction
from gateway.storage.durations import PARTS, Durations, Part, columns_of
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import traffic

SPAN = timedelta(minutes=5)

KEPT = timedelta(hours=48)

_SUMS = ("requests", "refused", "failed", "ms", "service_ms")

_DURATIONS = [name for part in PARTS for name in columns_of(part)]


@dataclass(frozen=True, slots=True)
class Span:
    """Five minutes of an operation and a merchant; both empty as in ``Use``."""

    began_at: datetime
    merchant: str
    environment: str
    operation: str


class Measured(Protocol):
    """What counts the same."""

    requests: int
    refused: int
    failed: int
    ms: int
    service_ms: int
    slowest_ms: int
    gateway: Durations
    service: Durations


@dataclass(slots=True)
class Traffic:
    """Requests, those of them answered 4xx and 5xx, and milliseconds: in all, those of them at the
    service, and those of the slowest request. How long they took in the ``gateway`` itself; and at the
    ``service``, those that it was asked for.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0
    ms: int = 0
    service_ms: int = 0
    slowest_ms: int = 0
    gateway: Durations = field(default_factory=Durations)
    service: Durations = field(default_factory=Durations)

    def add(self, other: Measured) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        self.gateway.add(other.gateway)
        self.service.add(other.service)

    @property
    def answered(self) -> int:
        return self.requests - self.refused - self.failed

    def percentile(self, part: Part, percent: float) -> float | None:
        """As ``Durations`` has it, and no more than the slowest request took."""
        durations = self.gateway if part == "gateway" else self.service
        found = durations.percentile(percent)
        # Of milliseconds that were rounded, none are up to a half.
        return None if found is None else min(found, max(self.slowest_ms, 1.0))

    @property
    def mean_service_ms(self) -> float:
        return self.service_ms / self.requests if self.requests else 0.0

    @property
    def mean_gateway_ms(self) -> float:
        """Reads side by side are at the service for longer together than the request took."""
        return max(self.ms - self.service_ms, 0) / self.requests if self.requests else 0.0


def span_of(moment: datetime) -> datetime:
    """When the span began in which a moment is."""
    seconds = SPAN.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


async def add_traffic(tx: Transaction, carried: Mapping[Span, Traffic]) -> None:
    """Adds to what was counted before, as a part of a transaction."""
    # In one order everywhere: two instances adding to the same rows must not wait in a ring.
    rows = sorted(
        (_row(span, its) for span, its in carried.items()),
        key=lambda row: [row[name] for name in _KEYS],
    )
    if rows:
        await tx.execute(_ADD, *rows)


def _adding(kind: ModuleType) -> Any:
    new = kind.insert(traffic)
    most = func.greatest if kind is postgresql else func.max
    added = (*_SUMS, *_DURATIONS)
    sums: dict[str, Any] = {name: traffic.c[name] + new.excluded[name] for name in added}
    sums["slowest_ms"] = most(traffic.c.slowest_ms, new.excluded.slowest_ms)
    return new.on_conflict_do_update(index_elements=_KEYS, set_=sums)


_KEYS = [column.name for column in traffic.primary_key]

_ADD = Statement(_adding, [column.name for column in traffic.c])


def _row(span: Span, its: Traffic) -> dict[str, Any]:
    row = {name: getattr(span, name) for name in _KEYS}
    row |= {name: getattr(its, name) for name in (*_SUMS, "slowest_ms")}
    for part in PARTS:
        row |= zip(columns_of(part), getattr(its, part).counts, strict=True)
    return row


async def traffic_by(
    store: Store,
    since: datetime,
    *names: str,
    only: Mapping[str, str] | None = None,
    durations: bool = False,
) -> dict[tuple[Any, ...], Traffic]:
    """Summed by columns, of the spans that began at ``since`` or later; StoreUnavailable.

    ``only`` are values that columns must have. Added up by the database: the process that asks
    has payments to see to. Durations only where they are asked for: it takes three times as long.
    """
    columns = [traffic.c[name] for name in names]
    added = (*_SUMS, *_DURATIONS) if durations else _SUMS
    sums = [func.sum(traffic.c[name]).label(name) for name in added]
    slowest = func.max(traffic.c.slowest_ms).label("slowest_ms")
    those = select(*columns, *sums, slowest).where(traffic.c.began_at >= since)
    for name, value in (only or {}).items():
        those = those.where(traffic.c[name] == value)
    if columns:
        those = those.group_by(*columns).order_by(*columns)
    rows = await store.read(lambda tx: tx.fetch(those))
    return {tuple(row[: len(names)]): _traffic(row, durations=durations) for row in rows}


def _traffic(row: Any, *, durations: bool) -> Traffic:
    def number(name: str) -> int:
        return int(getattr(row, name) or 0)

    found = Traffic()
    for name in (*_SUMS, "slowest_ms"):
        setattr(found, name, number(name))
    if durations:
        found.gateway, found.service = (
            Durations([number(name) for name in columns_of(part)]) for part in PARTS
        )
    return found


def summed(those: Iterable[Traffic]) -> Traffic:
    whole = Traffic()
    for one in those:
        whole.add(one)
    return whole


async def forget_traffic(store: Store) -> None:
    """What is older than ``KEPT``."""
    old = delete(traffic).where(traffic.c.began_at < store.clock() - KEPT)
    await store.write(lambda tx: tx.execute(old))
