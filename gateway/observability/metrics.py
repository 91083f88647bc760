"""The Prometheus metrics of one process, for `/metrics`.

Label values come only from fixed sets: interfaces, operations, endpoints, environments, outcomes. No
key, merchant, path or id is a label, so no client can add a series. An exemplar has the request id
that is in the access log too (only in the OpenMetrics format).

With several workers, the supervisor adds their metrics up; see
``gateway.server.workers.metrics_aggregation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mappings.current import ENDPOINTS

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # the library's own

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

OVER_LIMIT, BROWNOUT = "rate limit exceeded", "brownout"
"""Values of ``reason`` in a request's log line."""

DATABASE_UNAVAILABLE = "database_unavailable"
"""A value of ``error.type`` that is also an outcome."""

SIGNED, NO_OPERATION, ELSEWHERE = "signed", "none", "other"
"""Labels for requests without a legacy operation, and for endpoints that are not listed."""

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 25, 60),
)

CALLS = (0, 1, 2, 3, 4, 6, 10, 20, 50, 100, 200, 500, 1000)

REFRESHED, FAILED, CANCELLED = "success", "failed", "cancelled"
"""Outcomes of a full refresh of a recipient cache."""

EXEMPLAR_SECONDS = 0.1
"""Only slower requests get an exemplar: for the others it costs more than it is worth."""

EXEMPLAR_CHARACTERS = 128 - len("request_id")
"""OpenMetrics limits an exemplar's labels, names and values together, to 128 characters."""


def _named(name: str) -> str:
    return f"payout_gateway_{name}"


requests = Counter(
    _named("requests"),
    "Requests answered, by outcome.",
    ("api", "operation", "environment", "status", "outcome"),
    registry=REGISTRY,
)
request_duration = Histogram(
    _named("request_duration_seconds"),
    "Time from the first byte of a request to its response.",
    ("api", "operation", "environment"),
    buckets=SECONDS,
    registry=REGISTRY,
)
upstream_duration = Histogram(
    _named("upstream_request_duration_seconds"),
    "Time that a request spent in calls of the service; the times of parallel calls are added.",
    ("api", "operation", "environment"),
    buckets=SECONDS,
    registry=REGISTRY,
)
overhead = Histogram(
    _named("overhead_seconds"),
    "Duration of a request less its time in calls of the service.",
    ("api", "operation", "environment"),
    buckets=SECONDS,
    registry=REGISTRY,
)
in_flight = Gauge(
    _named("requests_in_flight"), "Requests that are being processed.", registry=REGISTRY
)
invalid_http = Counter(
    _named("invalid_http_requests"),
    "Connections or requests that are not valid HTTP.",
    registry=REGISTRY,
)
ignored = Counter(
    _named("ignored_parameters"),
    "Unknown query parameters, which are ignored.",
    ("operation",),
    registry=REGISTRY,
)
calls = Counter(
    _named("upstream_calls"),
    "Calls of the service, by outcome; a retry is part of the same call.",
    ("environment", "endpoint", "outcome"),
    registry=REGISTRY,
)
legacy_calls = Counter(
    _named("legacy_service_calls"),
    "Requests forwarded to the legacy service, or sent to it for comparison, by outcome.",
    ("environment", "operation", "outcome"),
    registry=REGISTRY,
)
database_errors = Counter(
    _named("database_errors"), "Failed accesses to the database.", registry=REGISTRY
)
database_up = Gauge(
    _named("database_up"), "Whether the database can be read and written.", registry=REGISTRY
)
rate_limiter_up = Gauge(
    _named("rate_limiter_backend_up"),
    "Whether requests are counted in the configured backend.",
    registry=REGISTRY,
)
in_doubt = Gauge(
    _named("in_doubt_writes"),
    "Writes sent more than a minute ago whose outcome is unknown, or whose request cannot go on.",
    registry=REGISTRY,
)
in_doubt_age = Gauge(
    _named("in_doubt_writes_oldest_age_seconds"),
    "Time since the oldest write in doubt was sent.",
    registry=REGISTRY,
)
open_writes = Gauge(
    _named("open_write_requests"),
    "Requests that write and are not finished, in doubt or in progress.",
    registry=REGISTRY,
)
abandoned = Gauge(
    _named("abandoned_batches"),
    "Batches at the service that must not be started.",
    registry=REGISTRY,
)
recorded = Counter(
    _named("recorded_requests"),
    "Requests selected for recording, by outcome.",
    ("outcome",),
    registry=REGISTRY,
)
freezes = Gauge(_named("write_freezes"), "Write freezes in force.", registry=REGISTRY)
restored = Gauge(
    _named("database_restored"),
    "Whether the database was restored from a backup and is not reconciled yet; no batch is started.",
    registry=REGISTRY,
)
keys = Gauge(
    _named("api_keys"), "API keys that are not revoked.", ("environment",), registry=REGISTRY
)
clock_offset = Gauge(
    _named("clock_offset_seconds"),
    "How far the service's clock is ahead of this machine's.",
    ("environment",),
    registry=REGISTRY,
)
caches = Gauge(
    _named("recipient_caches"),
    "Recipient caches in memory, one for each merchant in each process.",
    ("environment",),
    registry=REGISTRY,
)
cache_entries = Gauge(
    _named("recipient_cache_entries"),
    "Recipients in the recipient caches.",
    ("environment",),
    registry=REGISTRY,
)
cache_age = Gauge(
    _named("recipient_cache_oldest_age_seconds"),
    "Time since the last full refresh of the cache that was refreshed longest ago.",
    ("environment",),
    registry=REGISTRY,
)
cache_refreshes = Counter(
    _named("recipient_cache_refreshes"),
    "Full refreshes of a recipient cache, by outcome.",
    ("environment", "outcome"),
    registry=REGISTRY,
)
cache_calls = Histogram(
    _named("recipient_cache_upstream_calls"),
    "Calls of the service for a list served from a recipient cache, including those of a full "
    "refresh that the request waited for.",
    ("environment",),
    buckets=CALLS,
    registry=REGISTRY,
)
cache_stale = Counter(
    _named("recipient_cache_stale_entries"),
    "Recipients that a full refresh found changed although their update date was the same; lists "
    "may have shown their old values.",
    ("environment",),
    registry=REGISTRY,
)
build = Info(_named("build"), "The running version.", registry=REGISTRY)

_ENDPOINTS: Mapping[tuple[str, str], str] = {
    (one.method, one.path): f"{one.method} {one.path}" for one in ENDPOINTS
}
_FAILURES = frozenset({"in_doubt", "unreachable", "blocked", "overloaded", "refused_by_service"})
"""Values of ``error.type`` that are an outcome; each is the ``error_type`` of a Failure."""


# Series are cached, because labels have few values and the library's lookup is slow.
_requests, _calls = cache(requests.labels), cache(calls.labels)
_legacy_calls = cache(legacy_calls.labels)
_request_duration, _upstream_duration = (
    cache(request_duration.labels),
    cache(upstream_duration.labels),
)
_overhead = cache(overhead.labels)


def observe_request(
    *,
    api: str,
    operation: str | None,
    environment: str,
    status: int,
    took: float,
    at_service: float,
    request_id: str,
    told: Mapping[str, Any],
) -> None:
    """Record a request from the fields of its log line. Times are in seconds."""
    named = operation or (SIGNED if api == "signed" else NO_OPERATION)
    found = {"request_id": request_id} if len(request_id) <= EXEMPLAR_CHARACTERS else None
    counted = _requests(
        api, named, environment, f"{status // 100}xx", classify_outcome(status, told)
    )
    counted.inc(exemplar=found if status >= 500 else None)
    its = (api, named, environment)
    _observe(_request_duration(*its), took, found)
    # The times of parallel calls are added, so they may exceed the duration of the request.
    _observe(_overhead(*its), max(took - at_service, 0.0), found)
    if at_service:
        _observe(_upstream_duration(*its), at_service, found)


def _observe(histogram: Histogram, seconds: float, found: dict[str, str] | None) -> None:
    histogram.observe(seconds, exemplar=found if seconds >= EXEMPLAR_SECONDS else None)


def classify_outcome(status: int, told: Mapping[str, Any]) -> str:
    """Return the value of the label ``outcome`` for a request."""
    reason = told.get("reason")
    if reason == OVER_LIMIT:
        return "rate_limited"
    if reason == BROWNOUT:
        return "brownout"
    if status < 400:
        return "success"
    if status == 499:
        return "client_disconnected"
    error = told.get("error.type")
    if error == DATABASE_UNAVAILABLE:
        return DATABASE_UNAVAILABLE
    if "exception.stacktrace" in told:
        return "internal_error"
    if error in _FAILURES:
        return str(error)
    return "refused" if status < 500 else "failed"


def count_ignored_parameters(operation: str, count: int) -> None:
    """``operation`` is the name of an operation."""
    ignored.labels(operation).inc(count)


def count_call(environment: str, method: str, path: str, came_of_it: str) -> None:
    """Count a call; ``path`` is the endpoint's template, with placeholders for ids."""
    _calls(environment, _ENDPOINTS.get((method, path), ELSEWHERE), came_of_it).inc()


def count_legacy_call(environment: str, operation: str, came_of_it: str) -> None:
    """``operation`` is the name of an operation."""
    _legacy_calls(environment, operation, came_of_it).inc()


def render_metrics(accepted: str, figures: Collector = REGISTRY) -> tuple[bytes, str]:
    """Render metrics in the format that the Accept header asks for; return it with its type."""
    encoder, content_type = choose_encoder(accepted)
    return encoder(figures), content_type
