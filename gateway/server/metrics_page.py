"""The metrics page: gauges that are refreshed when `/metrics` is scraped."""

import asyncio
import math

from gateway.observability import metrics
from gateway.operator.state_gauges import StateGauges, load_state_gauges
from gateway.server.assembly import GatewayParts
from gateway.storage import StoreUnavailable
from gateway.upstream.http_connection import VERSION

MAX_AGE_SECONDS = 5.0
"""Maximum age of the gauges, so that many scrapers do not query the state more often."""

READ_TIMEOUT_SECONDS = 3.0

STATE_GAUGES = {
    "in_doubt_writes": metrics.in_doubt_writes,
    "in_doubt_seconds": metrics.in_doubt_age_seconds,
    "open_operations": metrics.open_writes,
    "superseded_batches": metrics.superseded_batches,
    "started_superseded_batches": metrics.started_superseded_batches,
    "freezes": metrics.freezes,
    "is_restored": metrics.database_restored,
}
"""The metrics by field of ``StateGauges``."""


class MetricsPage:
    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._environments = parts.settings.environments.map_configured_environments_by_name()
        self._read_at = -math.inf
        self._read_lock = asyncio.Lock()
        for environment in self._environments:
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
        async with self._read_lock:
            if (now := asyncio.get_running_loop().time()) - self._read_at >= MAX_AGE_SECONDS:
                # Before the refresh, so that a broken database is not queried by every scrape.
                self._read_at = now
                await self._refresh_gauges()
        return metrics.render_metrics(accepted)

    async def _refresh_gauges(self) -> None:
        parts = self._parts
        metrics.queued_requests.set(parts.load.limiter.waiting_count)
        services = {"current": parts.breakers, "legacy": parts.legacy_breakers}
        for service, breakers in services.items():
            for environment, breaker in breakers.items():
                metrics.breaker_open.labels(service, environment).set(not breaker.is_closed)
        for environment, origin in parts.upstream.origins.items():
            for usage, count in origin.connection_counts.items():
                metrics.upstream_connections.labels(environment, usage).set(count)
        refusals = parts.upstream.problems.map_refusals_by_environment()
        for environment in self._environments:
            metrics.refused_credentials.labels(environment).set(len(refusals.get(environment, ())))
            metrics.clock_offset.labels(environment).set(parts.upstream.clock.offset(environment))
            index_figures = parts.recipient_caches.calculate_cache_statistics(environment)
            metrics.recipient_caches.labels(environment).set(index_figures.caches)
            metrics.cache_entries.labels(environment).set(index_figures.recipients)
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                metrics.rate_limiter_up.set(await parts.rate_limiter.find_limiter_problem() is None)
        except TimeoutError:
            metrics.rate_limiter_up.set(0)
        try:
            # A slow database must not make the scrape time out: the other metrics are still valid.
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                self._set_state_gauges(await load_state_gauges(parts.store))
        except (StoreUnavailable, TimeoutError):
            self._set_state_gauges(None)

    def _set_state_gauges(self, gauges: StateGauges | None) -> None:
        is_writable = self._parts.store.database.write_error is None
        metrics.database_up.set(gauges is not None and is_writable)
        for name, gauge in STATE_GAUGES.items():
            # Not a number without figures: stale values must not look current.
            gauge.set(getattr(gauges, name, math.nan))
        metrics.api_keys.clear()
        counts = {**dict.fromkeys(self._environments, 0), **gauges.keys} if gauges else {}
        for environment, count in counts.items():
            metrics.api_keys.labels(environment).set(count)
