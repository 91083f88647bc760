"""Gauges of the state, refreshed when `/metrics` is scraped."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, func, select, text

from gateway.admission.limits import RateLimiter
from gateway.observability import metrics
from gateway.reads.recipient_cache import RecipientCaches
from gateway.storage import Store, StoreUnavailable
from gateway.storage.database import Transaction
from gateway.storage.operation_statements import IS_OPEN_OPERATION, IS_SENT_WRITE
from gateway.storage.restore_detection import RESTORED
from gateway.storage.state_tables import IS_SUPERSEDED, id_redirects
from gateway.storage.tables import (
    UNSEEN_BATCH_CONDITION,
    api_keys,
    counters,
    freezes,
    operations,
    upstream_writes,
)
from gateway.upstream.circuit_breaker import CircuitBreakers
from gateway.upstream.clock import ServiceClock
from gateway.upstream.http_connection import VERSION
from gateway.upstream.service_problems import ServiceProblems
from gateway.upstream.transport import Origin
from gateway.writes.states import DONE, IN_DOUBT, RUNNING

MAX_AGE_SECONDS = 5.0
"""Maximum age of the gauges, so that many scrapers do not query the state more often."""

READ_TIMEOUT_SECONDS = 3.0

IN_FLIGHT_PERIOD = timedelta(seconds=60)
"""A write that was sent longer ago is no longer in flight."""

STARTED_PERIOD = timedelta(days=1)
"""How long a superseded batch counts as started: long enough for an alert, which then ends."""


@dataclass(frozen=True, slots=True)
class StateGauges:
    """Figures of the state.

    ``in_doubt_writes``: writes sent more than a minute ago whose outcome is unknown, or after which the
    operation could not continue; the oldest was sent ``in_doubt_seconds`` ago. ``in_doubt_operations``
    also counts the newer ones that are known to be in doubt, as the list of them does. ``keys``: keys
    that are not revoked, by environment. ``is_restored``: no batch is started until the state is reconciled.
    """

    in_doubt_writes: int
    in_doubt_seconds: float
    in_doubt_operations: int
    open_operations: int
    superseded_batches: int
    started_superseded_batches: int
    freezes: int
    keys: Mapping[str, int]
    is_restored: bool


GAUGES = {
    "in_doubt_writes": metrics.in_doubt_writes,
    "in_doubt_seconds": metrics.in_doubt_age_seconds,
    "open_operations": metrics.open_writes,
    "superseded_batches": metrics.superseded_batches,
    "started_superseded_batches": metrics.started_superseded_batches,
    "freezes": metrics.freezes,
    "is_restored": metrics.database_restored,
}


async def load_state_gauges(store: Store) -> StateGauges:
    """Reads the gauges from the state with a few cheap queries. Raises StoreUnavailable."""
    now = store.clock()
    open_operations = select(
        operations.c.state,
        operations.c.reason,
        _build_time_query(func.min, IS_SENT_WRITE).label("sent_at"),
        _build_time_query(func.max).label("last_at"),
    ).where(IS_OPEN_OPERATION)
    # The exact conditions of the partial indexes: with others, a database scans the whole table.
    superseded_count = select(func.count()).select_from(id_redirects).where(text(IS_SUPERSEDED))
    started_count = superseded_count.where(
        id_redirects.c.started_at.is_not(None), id_redirects.c.updated_at > now - STARTED_PERIOD
    )
    unseen_count = (
        select(func.count()).select_from(upstream_writes).where(text(UNSEEN_BATCH_CONDITION))
    )
    freeze_count = select(func.count()).select_from(freezes)
    keys_by_environment = select(api_keys.c.environment, func.count()).where(
        api_keys.c.revoked_at.is_(None)
    )
    restored_flag = select(counters.c.value).where(counters.c.name == RESTORED)

    async def load(tx: Transaction) -> StateGauges:
        rows, late_at = await tx.fetch(open_operations), now - IN_FLIGHT_PERIOD
        # Newer writes are usually still in flight. An operation in doubt has a reason until it
        # ends, also while it is being resolved, or after all its writes were answered.
        times = [row.sent_at or (row.last_at if row.reason else None) for row in rows]
        late = [at for at in times if at and at < late_at]
        in_doubt = [
            row
            for row in rows
            if row.state == IN_DOUBT
            or (row.state == RUNNING and (row.reason or (row.sent_at and row.sent_at < late_at)))
        ]
        environments = await tx.fetch(keys_by_environment.group_by(api_keys.c.environment))
        return StateGauges(
            len(late),
            (now - min(late)).total_seconds() if late else 0,
            len(in_doubt),
            # Of the others only the delivery of the response is open, for up to a day.
            sum(row.state != DONE for row in rows),
            await tx.fetch_value(superseded_count) + await tx.fetch_value(unseen_count),
            await tx.fetch_value(started_count),
            await tx.fetch_value(freeze_count),
            {row[0]: row[1] for row in environments},
            bool(await tx.fetch_value(restored_flag)),
        )

    return await store.read(load)


def _build_time_query(choose: Any, *conditions: ColumnElement[bool]) -> ScalarSelect[Any]:
    """Builds a query for the time of one of an operation's writes; a join would scan all writes."""
    time = choose(upstream_writes.c.recorded_at, type_=upstream_writes.c.recorded_at.type)
    is_of_operation = upstream_writes.c.operation_id == operations.c.id
    return select(time).where(is_of_operation, *conditions).correlate(operations).scalar_subquery()


@dataclass(slots=True)
class MetricsPage:
    store: Store
    limits: RateLimiter
    clock: ServiceClock
    indexes: RecipientCaches
    environments: Collection[str]
    breakers: CircuitBreakers
    legacy_breakers: CircuitBreakers
    problems: ServiceProblems
    count_queued_requests: Callable[[], int]
    origins: Mapping[str, Origin]
    read_at: float = -math.inf
    read_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        for environment in self.environments:
            # Created at zero: `increase()` does not see the first increment of a series that starts
            # at 1.
            metrics.cache_calls.labels(environment)
            metrics.cache_stale.labels(environment)
            metrics.traffic.upstream_retry_counts.setdefault(environment, 0)
            for outcome in (metrics.REFRESHED, metrics.FAILED, metrics.CANCELLED):
                metrics.cache_refreshes.labels(environment, outcome)
        metrics.build_info.info({"version": VERSION})

    async def render(self, accepted: str) -> tuple[bytes, str]:
        # Concurrent scrapes share one refresh.
        async with self.read_lock:
            if (now := asyncio.get_running_loop().time()) - self.read_at >= MAX_AGE_SECONDS:
                # Before the refresh, so that a broken database is not queried by every scrape.
                self.read_at = now
                await self._refresh_gauges()
        return metrics.render_metrics(accepted)

    async def _refresh_gauges(self) -> None:
        metrics.queued_requests.set(self.count_queued_requests())
        services = {"current": self.breakers, "legacy": self.legacy_breakers}
        for service, breakers in services.items():
            for environment, breaker in breakers.items():
                metrics.breaker_open.labels(service, environment).set(not breaker.is_closed)
        for environment, origin in self.origins.items():
            for usage, count in origin.connection_counts.items():
                metrics.upstream_connections.labels(environment, usage).set(count)
        refusals = self.problems.map_refusals_by_environment()
        for environment in self.environments:
            metrics.refused_credentials.labels(environment).set(len(refusals.get(environment, ())))
            metrics.clock_offset.labels(environment).set(self.clock.offset(environment))
            index_figures = self.indexes.calculate_cache_statistics(environment)
            metrics.recipient_caches.labels(environment).set(index_figures.caches)
            metrics.cache_entries.labels(environment).set(index_figures.recipients)
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                metrics.rate_limiter_up.set(await self.limits.find_limiter_problem() is None)
        except TimeoutError:
            metrics.rate_limiter_up.set(0)
        try:
            # A slow database must not make the scrape time out: the other metrics are still valid.
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                self._set_state_gauges(await load_state_gauges(self.store))
        except (StoreUnavailable, TimeoutError):
            self._clear_state_gauges()

    def _set_state_gauges(self, gauges: StateGauges) -> None:
        metrics.database_up.set(self.store.database.write_error is None)
        for name, gauge in GAUGES.items():
            gauge.set(getattr(gauges, name))
        keys_by_environment = dict.fromkeys(self.environments, 0) | dict(gauges.keys)
        for environment, key_count in keys_by_environment.items():
            metrics.api_keys.labels(environment).set(key_count)

    def _clear_state_gauges(self) -> None:
        """Clears the gauges: stale values must not look current."""
        metrics.database_up.set(0)
        for gauge in GAUGES.values():
            gauge.set(math.nan)
        metrics.api_keys.clear()
