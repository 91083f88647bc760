"""Traffic of the last days in spans of five minutes, by merchant and operation, for the charts.

``usage_rows`` counts usage by day, for as long as the configuration says. This table is finer and
shorter: rows are deleted after ``RETENTION``, so there are at most 576 for each merchant and
operation.
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
from gateway.storage.durations import PARTS, Durations, Part, list_bucket_columns
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import traffic

SPAN_LENGTH = timedelta(minutes=5)

RETENTION = timedelta(hours=48)

_SUMS = ("requests", "refused", "failed", "ms", "service_ms")

_DURATION_COLUMNS = [name for part in PARTS for name in list_bucket_columns(part)]


@dataclass(frozen=True, slots=True)
class Span:
    """Five minutes of one operation and merchant; either may be empty, as in ``UsageKey``."""

    began_at: datetime
    merchant: str
    environment: str
    operation: str


class TrafficCounts(Protocol):
    """The counters that ``Traffic.add`` reads."""

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
    """Counters of requests.

    ``refused`` were answered 4xx and ``failed`` 5xx. ``ms`` is the total time, ``service_ms`` the
    part of it at the service. ``gateway`` and ``service`` are histograms: the time in the gateway
    itself, of every request, and the time at the service, of requests that called it.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0
    ms: int = 0
    service_ms: int = 0
    slowest_ms: int = 0
    gateway: Durations = field(default_factory=Durations)
    service: Durations = field(default_factory=Durations)

    def add(self, other: TrafficCounts) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        self.gateway.add(other.gateway)
        self.service.add(other.service)

    @property
    def successful(self) -> int:
        return self.requests - self.refused - self.failed

    def percentile(self, part: Part, percent: float) -> float | None:
        """Returns a percentile in milliseconds, at most the slowest request; None without any."""
        durations = self.gateway if part == "gateway" else self.service
        percentile = durations.percentile(percent)
        # A slowest request of 0 ms was rounded down from less than half a millisecond.
        return None if percentile is None else min(percentile, max(self.slowest_ms, 1.0))

    @property
    def mean_service_ms(self) -> float:
        return self.service_ms / self.requests if self.requests else 0.0

    @property
    def mean_gateway_ms(self) -> float:
        """Mean time in the gateway; 0 if parallel reads add up to more than the request took."""
        return max(self.ms - self.service_ms, 0) / self.requests if self.requests else 0.0


def compute_traffic_span_start(moment: datetime) -> datetime:
    """Returns the start of the span that contains a moment."""
    seconds = SPAN_LENGTH.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


async def add_traffic_counts(tx: Transaction, traffic_by_span: Mapping[Span, Traffic]) -> None:
    """Adds to the stored counters, as part of a transaction."""
    # Always in the same order: two instances that update the same rows must not deadlock.
    rows = sorted(
        (_build_traffic_row(span, counts) for span, counts in traffic_by_span.items()),
        key=lambda row: [row[name] for name in _KEY_COLUMNS],
    )
    if rows:
        await tx.execute(_UPSERT, *rows)


def _build_upsert(kind: ModuleType) -> Any:
    new = kind.insert(traffic)
    greatest = func.greatest if kind is postgresql else func.max
    summed_columns = (*_SUMS, *_DURATION_COLUMNS)
    sums: dict[str, Any] = {name: traffic.c[name] + new.excluded[name] for name in summed_columns}
    sums["slowest_ms"] = greatest(traffic.c.slowest_ms, new.excluded.slowest_ms)
    return new.on_conflict_do_update(index_elements=_KEY_COLUMNS, set_=sums)


_KEY_COLUMNS = [column.name for column in traffic.primary_key]

_UPSERT = Statement(_build_upsert, [column.name for column in traffic.c])


def _build_traffic_row(span: Span, counts: Traffic) -> dict[str, Any]:
    row = {name: getattr(span, name) for name in _KEY_COLUMNS}
    row |= {name: getattr(counts, name) for name in (*_SUMS, "slowest_ms")}
    for part in PARTS:
        row |= zip(list_bucket_columns(part), getattr(counts, part).counts, strict=True)
    return row


async def load_traffic_count_sums(
    store: Store,
    since: datetime,
    *column_names: str,
    required_values: Mapping[str, str] | None = None,
    has_durations: bool = False,
) -> dict[tuple[Any, ...], Traffic]:
    """Sums the spans since a time, grouped by columns; raises StoreUnavailable.

    ``required_values`` filters by columns. The database adds them up, so that the process stays
    free for payments. ``has_durations`` loads the histograms too, which takes three times as long.
    """
    columns = [traffic.c[name] for name in column_names]
    summed_columns = (*_SUMS, *_DURATION_COLUMNS) if has_durations else _SUMS
    sums = [func.sum(traffic.c[name]).label(name) for name in summed_columns]
    slowest = func.max(traffic.c.slowest_ms).label("slowest_ms")
    query = select(*columns, *sums, slowest).where(traffic.c.began_at >= since)
    for name, value in (required_values or {}).items():
        query = query.where(traffic.c[name] == value)
    if columns:
        query = query.group_by(*columns).order_by(*columns)
    rows = await store.read(lambda tx: tx.fetch(query))
    return {
        tuple(row[: len(column_names)]): _parse_traffic_counts(row, has_durations=has_durations)
        for row in rows
    }


def _parse_traffic_counts(row: Any, *, has_durations: bool) -> Traffic:
    def read_number(name: str) -> int:
        return int(getattr(row, name) or 0)

    counts = Traffic()
    for name in (*_SUMS, "slowest_ms"):
        setattr(counts, name, read_number(name))
    if has_durations:
        counts.gateway, counts.service = (
            Durations([read_number(name) for name in list_bucket_columns(part)]) for part in PARTS
        )
    return counts


def sum_traffic_counts(counts: Iterable[Traffic]) -> Traffic:
    total = Traffic()
    for count in counts:
        total.add(count)
    return total


async def delete_old_traffic_counts(store: Store) -> None:
    """Deletes rows older than ``RETENTION``."""
    old_rows = traffic.c.began_at < store.clock() - RETENTION
    await store.write(lambda tx: tx.execute(delete(traffic).where(old_rows)))
