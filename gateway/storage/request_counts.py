"""Counts of requests and histograms of their durations, by minute, hour and day.

The days are also counted by API key, for `report usage`. Minutes and hours are for the plots of the
console and are soon deleted, so that their number is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from itertools import repeat
from operator import sub
from typing import Any, Literal, NamedTuple

from sqlalchemy import delete, func, or_, select

from gateway.observability.request_series import (
    RequestRecord,
    RequestSource,
    count_by_bucket,
    split_durations,
)
from gateway.storage.database import Transaction
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.sql import build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import BUCKET_COLUMNS, request_counts
from gateway.storage.tenants import Tenant
from mappings.failures import ClientDisconnected

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

RETENTION: Mapping[timedelta, timedelta] = {MINUTE: timedelta(hours=6), HOUR: timedelta(hours=48)}
"""How long the counts of a minute or an hour are kept; for days, the configuration says it."""

WRITE_INTERVAL_SECONDS = 0.7
"""Seconds between two writes; with the duration of a write, a count is durable within a second."""

BUCKET_BOUNDS_MS = tuple(
    step * 10**power for power in range(5) for step in (1.0, 1.6, 2.5, 4.0, 6.3)
)[:-1]
"""Upper bounds of the buckets in milliseconds, 1 to 40,000; one more bucket has no upper bound."""

Part = Literal["gateway", "service"]
"""A measured part of a request: the time in the gateway itself, or at the service."""

_SUMS = ("requests", "refused", "failed")
_BUCKET_NAMES = [name for names in BUCKET_COLUMNS.values() for name in names]


def _build_empty_histogram() -> list[int]:
    return [0] * (len(BUCKET_BOUNDS_MS) + 1)


@dataclass(slots=True)
class RequestCounts:
    """Counts of requests.

    ``refused`` were answered 4xx and ``failed`` 5xx. ``gateway`` and ``service`` are histograms: the
    time in the gateway itself, of every request, and the time at the service, of requests that
    called it.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0
    slowest_ms: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    gateway: list[int] = field(default_factory=_build_empty_histogram)
    service: list[int] = field(default_factory=_build_empty_histogram)

    def add(self, other: RequestCounts) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        self.first_at = min(filter(None, (self.first_at, other.first_at)), default=None)
        self.last_at = max(filter(None, (self.last_at, other.last_at)), default=None)
        self.gateway = [*map(sum, zip(self.gateway, other.gateway, strict=True))]
        self.service = [*map(sum, zip(self.service, other.service, strict=True))]

    @property
    def successful(self) -> int:
        return self.requests - self.refused - self.failed

    @property
    def error_rate(self) -> float:
        """Share of requests answered 4xx or 5xx, rounded to four decimals."""
        return round((self.refused + self.failed) / (self.requests or 1), 4)

    def percentile(self, part: Part, percent: float) -> float | None:
        """Returns a percentile in milliseconds, off by at most one bucket; None without requests.

        It is at most the slowest request.
        """
        counts = self.gateway if part == "gateway" else self.service
        rank, lower_count = sum(counts) * percent / 100, 0
        for bucket, count in enumerate(counts):
            if count and lower_count + count >= rank:
                percentile = _interpolate_in_bucket(bucket, (rank - lower_count) / count)
                return min(percentile, self.slowest_ms)
            lower_count += count
        return None


def _interpolate_in_bucket(bucket: int, fraction: float) -> float:
    """Interpolates inside a bucket, on the logarithmic scale of the bounds."""
    if bucket == len(BUCKET_BOUNDS_MS):
        return math.inf
    upper = BUCKET_BOUNDS_MS[bucket]
    lower = BUCKET_BOUNDS_MS[bucket - 1] if bucket else upper / 1.6
    # More digits would suggest a precision that a histogram does not have.
    return float(f"{lower * (upper / lower) ** fraction:.2g}")


def sum_request_counts(counts: Iterable[RequestCounts]) -> RequestCounts:
    total = RequestCounts()
    for count in counts:
        total.add(count)
    return total


class CountKey(NamedTuple):
    """What is counted together.

    ``key`` is the name of the API key, empty for requests without a known one; ``operation`` is
    empty for paths that match no operation. Minutes and hours have no key.
    """

    began_at: datetime
    span: timedelta
    merchant: str
    environment: str
    key: str
    operation: str


def compute_span_start(moment: datetime, span: timedelta) -> datetime:
    """Returns the start of the minute, hour or day that contains a moment."""
    seconds = span.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


class UsageCounter(PeriodicTask):
    """Counts requests; while entered with ``async with``, writes the counts about once a second.

    After a clean stop the counts are exact. A killed process loses at most one second of them.
    """

    def __init__(self, store: Store, wall: Callable[[], float]) -> None:
        super().__init__("usage_write", WRITE_INTERVAL_SECONDS, self._write_counts)
        self._store = store
        self.wall = wall
        """The clock of the records."""
        self.pending_requests: list[RequestRecord] = []
        self._counts: dict[CountKey, RequestCounts] = {}
        """Counts that could not be written."""

    async def _write_counts(self) -> None:
        """Writes the counts; if that fails, they are written next time."""
        # Replaced before the write: requests are recorded while it waits for the database.
        requests, self.pending_requests = self.pending_requests, []
        groups: dict[tuple[RequestSource, int], list[RequestRecord]] = {}
        for request in requests:
            groups.setdefault((request[2], int(request[0] // 60)), []).append(request)
        for (source, minute), group in groups.items():
            tenant, key, operation = source.usage_key
            began_at = datetime.fromtimestamp(minute * 60, UTC)
            count_key = CountKey(began_at, MINUTE, *tenant, key, operation)
            self._counts.setdefault(count_key, RequestCounts()).add(count_requests(group))
        await add_request_counts(self._store, self._counts)
        self._counts = {}


def count_requests(requests: Sequence[RequestRecord]) -> RequestCounts:
    """Counts requests of one tenant, key and operation, in the order of their end."""
    statuses = [request[3] for request in requests]
    seconds, service_seconds = split_durations(requests)
    ms = [duration * 1000 for duration in seconds]
    service_ms = [duration * 1000 for duration in service_seconds]
    counts = RequestCounts(
        len(requests),
        refused=sum(400 <= status < 500 for status in statuses),
        # No client has seen the 5xx of a request whose client had left.
        failed=sum(
            request[3] >= 500 and request[7].get("error.type") != ClientDisconnected.error_type
            for request in requests
        ),
        # Rounded up, so that no percentile is above it.
        slowest_ms=math.ceil(max(ms)),
        # The clock may be set back meanwhile.
        first_at=datetime.fromtimestamp(min(requests[0][0], requests[-1][0]), UTC),
        last_at=datetime.fromtimestamp(max(requests[0][0], requests[-1][0]), UTC),
    )
    # The sum of concurrent calls' durations can exceed the duration of the request.
    own_ms = map(max, map(sub, ms, service_ms), repeat(0.0))
    count_by_bucket(counts.gateway, BUCKET_BOUNDS_MS, own_ms)
    count_by_bucket(counts.service, BUCKET_BOUNDS_MS, filter(None, service_ms))
    return counts


async def add_request_counts(store: Store, counts: Mapping[CountKey, RequestCounts]) -> None:
    """Adds counts of any span to the stored ones of minute, hour and day.

    Raises StoreUnavailable.
    """
    if not counts:
        return
    counts_by_row: dict[CountKey, RequestCounts] = {}
    for count_key, count in counts.items():
        for span in (MINUTE, HOUR, DAY):
            # Counts of a day cannot be divided into hours again.
            if span >= count_key.span:
                row_key = count_key._replace(
                    began_at=compute_span_start(count_key.began_at, span),
                    span=span,
                    key=count_key.key if span == DAY else "",
                )
                counts_by_row.setdefault(row_key, RequestCounts()).add(count)
    # Always in the same order: two instances that update the same rows must not deadlock.
    rows = [_build_row(row_key, counts_by_row[row_key]) for row_key in sorted(counts_by_row)]
    await store.execute(_UPSERT, *rows)


def _build_row(row_key: CountKey, counts: RequestCounts) -> dict[str, Any]:
    row = row_key._asdict()
    row["seconds"] = row.pop("span").total_seconds()
    for name in (*_SUMS, "slowest_ms", "first_at", "last_at"):
        row[name] = getattr(counts, name)
    row |= zip(_BUCKET_NAMES, [*counts.gateway, *counts.service], strict=True)
    return row


_UPSERT = build_upsert_statement(
    request_counts,
    summed=(*_SUMS, *_BUCKET_NAMES),
    least=("first_at",),
    greatest=("slowest_ms", "last_at"),
)


async def load_request_counts(
    store: Store,
    span: timedelta,
    since: datetime | None,
    *column_names: str,
    required_values: Mapping[str, str] | None = None,
    has_durations: bool = False,
) -> dict[tuple[Any, ...], RequestCounts]:
    """Sums the minutes, hours or days since a time, grouped by columns; raises StoreUnavailable.

    ``required_values`` filters by columns. The database adds them up, so that the process stays
    free for payments. ``has_durations`` loads the histograms too, which takes three times as long.
    """
    table = request_counts.c
    columns = [table[name] for name in column_names]
    sums = [
        func.sum(table[name]).label(name)
        for name in (*_SUMS, *(_BUCKET_NAMES if has_durations else ()))
    ]
    # With the column's type, which an aggregate does not have on SQLite.
    first = func.min(table.first_at, type_=table.first_at.type).label("first_at")
    last = func.max(table.last_at, type_=table.last_at.type).label("last_at")
    slowest = func.max(table.slowest_ms).label("slowest_ms")
    conditions = [table[name] == value for name, value in (required_values or {}).items()]
    if since:
        conditions.append(table.began_at >= since)
    query = (
        select(*columns, *sums, slowest, first, last)
        .where(table.seconds == span.total_seconds(), *conditions)
        .group_by(*columns)
        .order_by(*columns)
    )
    rows = await store.fetch(query)
    return {tuple(row[: len(columns)]): _parse_counts(row._asdict()) for row in rows}


def _parse_counts(values: Mapping[str, Any]) -> RequestCounts:
    counts = RequestCounts(first_at=values["first_at"], last_at=values["last_at"])
    for name in (*_SUMS, "slowest_ms"):
        setattr(counts, name, int(values[name] or 0))
    if _BUCKET_NAMES[0] in values:
        counts.gateway, counts.service = (
            [int(values[name] or 0) for name in names] for names in BUCKET_COLUMNS.values()
        )
    return counts


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """Usage of a key, by operation. An empty ``key`` stands for requests without a known key."""

    tenant: Tenant
    key: str
    operations: dict[str, RequestCounts]

    @property
    def requests(self) -> int:
        return sum(counts.requests for counts in self.operations.values())

    @property
    def last_at(self) -> datetime:
        return max(filter(None, (counts.last_at for counts in self.operations.values())))


async def load_usage(store: Store, since: date | None = None) -> list[KeyUsage]:
    """Loads the counts of days by merchant, environment and key; raises StoreUnavailable."""
    begin = datetime.combine(since, time(), UTC) if since else None
    names = ("merchant", "environment", "key", "operation")
    usage_by_key: dict[tuple[Tenant, str], KeyUsage] = {}
    for (*owner, key, operation), counts in (
        await load_request_counts(store, DAY, begin, *names)
    ).items():
        tenant = Tenant(*owner)
        usage = usage_by_key.setdefault((tenant, key), KeyUsage(tenant, key, {}))
        usage.operations[operation] = counts
    return list(usage_by_key.values())


async def delete_old_request_counts(store: Store) -> None:
    """Deletes minutes and hours that are older than ``RETENTION``."""
    table, now = request_counts.c, store.clock()
    is_old = or_(
        *(
            (table.seconds == span.total_seconds()) & (table.began_at < now - age)
            for span, age in RETENTION.items()
        )
    )
    await store.execute(delete(request_counts).where(is_old))


async def delete_old_usage(tx: Transaction, before: datetime) -> int:
    """Deletes the days before a moment's day; returns the number of rows."""
    table = request_counts.c
    is_old = (table.seconds == DAY.total_seconds()) & (
        table.began_at < compute_span_start(before, DAY)
    )
    return await tx.execute(delete(request_counts).where(is_old))
