"""Counts usage by key and operation, and traffic; written to the database about once a second.

After a clean stop the counts are exact. A killed process loses at most one second of counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

import structlog

from gateway.storage import Store, StoreUnavailable
from gateway.storage.durations import BUCKET_BOUNDS_MS, Durations
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.traffic_rows import SPAN_LENGTH, Span, Traffic, compute_traffic_span_start
from gateway.storage.usage_rows import UsageCounts, UsageKey, add_usage_and_traffic_counts

NO_TENANT = ("", "")
"""The tenant of a request without a known key."""

WRITE_INTERVAL_SECONDS = 0.7
"""Seconds between two writes; with the duration of a write, a count is durable within a second."""

CountKey = tuple[datetime, tuple[str, str], str, str]
"""Start of the span, tenant, key name and operation."""

log = structlog.get_logger()


@dataclass(slots=True)
class Tally(UsageCounts):
    """Counts with durations and the slowest request, in milliseconds."""

    slowest_ms: int = 0
    gateway: Durations = field(default_factory=Durations)
    service: Durations = field(default_factory=Durations)

    def add_tally(self, tally: Tally) -> None:
        for name in ("requests", "refused", "failed", "ms", "service_ms"):
            setattr(self, name, getattr(self, name) + getattr(tally, name))
        self.slowest_ms = max(self.slowest_ms, tally.slowest_ms)
        self.gateway.add(tally.gateway)
        self.service.add(tally.service)
        self.first_at = min(filter(None, (self.first_at, tally.first_at)), default=None)
        self.last_at = max(filter(None, (self.last_at, tally.last_at)), default=None)


class UsageCounter:
    """Counts requests; an async context manager that writes the counts periodically."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        # A span never crosses midnight, so usage per day and traffic come from the same counts.
        self._tallies: dict[CountKey, Tally] = {}
        self._span = compute_traffic_span_start(clock())
        self._write_task = PeriodicTask("usage_write", WRITE_INTERVAL_SECONDS, self._write_tallies)

    async def __aenter__(self) -> Self:
        await self._write_task.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._write_task.__aexit__()

    def count(
        self,
        tenant: tuple[str, str],
        key: str,
        operation: str,
        status: int,
        *,
        seconds: float = 0,
        service_seconds: float = 0,
    ) -> None:
        """Counts one request when its response is sent."""
        now = self._clock()
        # Compared for inequality, because the clock may be set back.
        if not self._span <= now < self._span + SPAN_LENGTH:
            self._span = compute_traffic_span_start(now)
        count_key = (self._span, tenant, key, operation)
        if (tally := self._tallies.get(count_key)) is None:
            tally = self._tallies[count_key] = Tally(first_at=now)
        ms = round(seconds * 1000)
        tally.requests += 1
        tally.refused += 400 <= status < 500
        tally.failed += status >= 500
        tally.ms += ms
        tally.service_ms += round(service_seconds * 1000)
        tally.slowest_ms = max(tally.slowest_ms, ms)
        # The sum of concurrent calls' durations can exceed the duration of the request.
        own_seconds = seconds - service_seconds if seconds > service_seconds else 0.0
        # ``Durations.count``, written out because this runs for every request.
        tally.gateway.counts[bisect_left(BUCKET_BOUNDS_MS, own_seconds * 1000)] += 1
        if service_seconds:
            tally.service.counts[bisect_left(BUCKET_BOUNDS_MS, service_seconds * 1000)] += 1
        tally.last_at = now

    async def _write_tallies(self) -> None:
        """Writes the counts; if that fails, they are written next time."""
        # Replaced before the write, because requests are counted while it waits for the database.
        tallies, self._tallies = self._tallies, {}
        try:
            await add_usage_and_traffic_counts(
                self._store, _sum_usage_by_day(tallies), _sum_traffic_by_span(tallies)
            )
        except StoreUnavailable:
            # Merged, because requests were counted during the failed write.
            for count_key, tally in self._tallies.items():
                tallies.setdefault(count_key, Tally()).add_tally(tally)
            self._tallies = tallies
            raise


def _sum_usage_by_day(tallies: Mapping[CountKey, Tally]) -> dict[UsageKey, UsageCounts]:
    counts: dict[UsageKey, Tally] = {}
    for (span, tenant, key, operation), tally in tallies.items():
        counts.setdefault(UsageKey(*tenant, key, operation, span.date()), Tally()).add_tally(tally)
    return {**counts}


def _sum_traffic_by_span(tallies: Mapping[CountKey, Tally]) -> dict[Span, Traffic]:
    traffic: dict[Span, Traffic] = {}
    for (span, tenant, _key, operation), tally in tallies.items():
        # The key is left out, to bound the number of rows.
        traffic.setdefault(Span(span, *tenant, operation), Traffic()).add(tally)
    return traffic
