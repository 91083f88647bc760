"""The Prometheus metrics of one process, for `/metrics`.

Label values come only from fixed sets: interfaces, operations, endpoints, environments, outcomes.
No key, merchant, path or id is a label, so no client can add a series. An exemplar has the request
id that is in the access log too (only in the OpenMetrics format).

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

# The `_created` series would double the number of series of counters and histograms.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # the library's own

# The default registry would add series about Python and its garbage collector.
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

RATE_LIMIT_REASON, BROWNOUT_REASON = "rate limit exceeded", "brownout"
"""Values of ``reason`` in a request's log line."""

DATABASE_UNAVAILABLE = "database_unavailable"
"""A value of ``error.type`` that is also an outcome."""

SIGNED_OPERATION, NO_OPERATION, OTHER_ENDPOINT = "signed", "none", "other"
"""Labels for requests without a legacy operation, and for endpoints that are not listed."""

# The buckets below 50 ms resolve the gateway's own overhead; 25 s is the default upstream timeout.
DURATION_BUCKETS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 25, 60),
)

CALL_COUNT_BUCKETS = (0, 1, 2, 3, 4, 6, 10, 20, 50, 100, 200, 500, 1000)

REFRESHED, FAILED, CANCELLED = "success", "failed", "cancelled"
"""Outcomes of a full refresh of a recipient cache."""

MIN_EXEMPLAR_SECONDS = 0.1
"""Only slower requests get an exemplar: for the others it costs more than it is worth."""

MAX_EXEMPLAR_CHARACTERS = 128 - len("request_id")
"""OpenMetrics limits an exemplar's labels, names and values together, to 128 characters."""


def _prefix_metric_name(name: str) -> str:
    return f"payout_gateway_{name}"


requests = Counter(
    _prefix_metric_name("requests"),
    "Requests answered, by outcome.",
    ("api", "operation", "environment", "status", "outcome"),
    registry=REGISTRY,
)
request_duration = Histogram(
    _prefix_metric_name("request_duration_seconds"),
    "Time from the first byte of a request to its response.",
    ("api", "operation", "environment"),
    buckets=DURATION_BUCKETS_SECONDS,
    registry=REGISTRY,
)
upstream_duration = Histogram(
    _prefix_metric_name("upstream_request_duration_seconds"),
    "Time that a request spent in calls of the service; the times of parallel calls are added.",
    ("api", "operation", "environment"),
    buckets=DURATION_BUCKETS_SECONDS,
    registry=REGISTRY,
)
overhead = Histogram(
    _prefix_metric_name("overhead_seconds"),
    "Duration of a request less its time in calls of the service.",
    ("api", "operation", "environment"),
    buckets=DURATION_BUCKETS_SECONDS,
    registry=REGISTRY,
)
in_flight = Gauge(
    _prefix_metric_name("requests_in_flight"),
    "Requests that are being processed.",
    registry=REGISTRY,
)
invalid_http = Counter(
    _prefix_metric_name("invalid_http_requests"),
    "Connections or requests that are not valid HTTP.",
    registry=REGISTRY,
)
ignored_parameters = Counter(
    _prefix_metric_name("ignored_parameters"),
    "Unknown query parameters, which are ignored.",
    ("operation",),
    registry=REGISTRY,
)
upstream_calls = Counter(
    _prefix_metric_name("upstream_calls"),
    "Calls of the service, by outcome; a retry is part of the same call.",
    ("environment", "endpoint", "outcome"),
    registry=REGISTRY,
)
legacy_calls = Counter(
    _prefix_metric_name("legacy_service_calls"),
    "Requests forwarded to the legacy service, or sent to it for comparison, by outcome.",
    ("environment", "operation", "outcome"),
    registry=REGISTRY,
)
database_errors = Counter(
    _prefix_metric_name("database_errors"), "Failed accesses to the database.", registry=REGISTRY
)
database_up = Gauge(
    _prefix_metric_name("database_up"),
    "Whether the database can be read and written.",
    registry=REGISTRY,
)
rate_limiter_up = Gauge(
    _prefix_metric_name("rate_limiter_backend_up"),
    "Whether requests are counted in the configured backend.",
    registry=REGISTRY,
)
in_doubt_writes = Gauge(
    _prefix_metric_name("in_doubt_writes"),
    "Writes sent more than a minute ago whose outcome is unknown, or whose request cannot go on.",
    registry=REGISTRY,
)
in_doubt_age_seconds = Gauge(
    _prefix_metric_name("in_doubt_writes_oldest_age_seconds"),
    "Time since the oldest write in doubt was sent.",
    registry=REGISTRY,
)
open_writes = Gauge(
    _prefix_metric_name("open_write_requests"),
    "Requests that write and are not finished, in doubt or in progress.",
    registry=REGISTRY,
)
superseded_batches = Gauge(
    # "Abandoned" is an older word for "superseded"; dashboards and alerts use the name.
    _prefix_metric_name("abandoned_batches"),
    "Batches at the service that must not be started.",
    registry=REGISTRY,
)
recorded_requests = Counter(
    _prefix_metric_name("recorded_requests"),
    "Requests selected for recording, by outcome.",
    ("outcome",),
    registry=REGISTRY,
)
freezes = Gauge(_prefix_metric_name("write_freezes"), "Write freezes in force.", registry=REGISTRY)
database_restored = Gauge(
    _prefix_metric_name("database_restored"),
    "Whether the database was restored from a backup and is not reconciled yet; no batch is started.",
    registry=REGISTRY,
)
api_keys = Gauge(
    _prefix_metric_name("api_keys"),
    "API keys that are not revoked.",
    ("environment",),
    registry=REGISTRY,
)
clock_offset = Gauge(
    _prefix_metric_name("clock_offset_seconds"),
    "How far the service's clock is ahead of this machine's.",
    ("environment",),
    registry=REGISTRY,
)
recipient_caches = Gauge(
    _prefix_metric_name("recipient_caches"),
    "Recipient caches in memory, one for each merchant in each process.",
    ("environment",),
    registry=REGISTRY,
)
cache_entries = Gauge(
    _prefix_metric_name("recipient_cache_entries"),
    "Recipients in the recipient caches.",
    ("environment",),
    registry=REGISTRY,
)
cache_age = Gauge(
    _prefix_metric_name("recipient_cache_oldest_age_seconds"),
    "Time since the last full refresh of the cache that was refreshed longest ago.",
    ("environment",),
    registry=REGISTRY,
)
cache_refreshes = Counter(
    _prefix_metric_name("recipient_cache_refreshes"),
    "Full refreshes of a recipient cache, by outcome.",
    ("environment", "outcome"),
    registry=REGISTRY,
)
cache_calls = Histogram(
    _prefix_metric_name("recipient_cache_upstream_calls"),
    "Calls of the service for a list served from a recipient cache, including those of a full "
    "refresh that the request waited for.",
    ("environment",),
    buckets=CALL_COUNT_BUCKETS,
    registry=REGISTRY,
)
cache_stale = Counter(
    _prefix_metric_name("recipient_cache_stale_entries"),
    "Recipients that a full refresh found changed although their update date was the same; lists "
    "may have shown their old values.",
    ("environment",),
    registry=REGISTRY,
)
build_info = Info(_prefix_metric_name("build"), "The running version.", registry=REGISTRY)

_ENDPOINTS: Mapping[tuple[str, str], str] = {
    (endpoint.method, endpoint.path): f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS
}
_FAILURE_OUTCOMES = frozenset(
    {"in_doubt", "unreachable", "blocked", "overloaded", "refused_by_service"}
)
"""Values of ``error.type`` that are an outcome; each is the ``error_type`` of a Failure."""


# Series are cached, because labels have few values and the library's lookup is slow.
_get_requests_series, _get_upstream_calls_series = (
    cache(requests.labels),
    cache(upstream_calls.labels),
)
_get_legacy_calls_series = cache(legacy_calls.labels)
_get_request_duration_series, _get_upstream_duration_series = (
    cache(request_duration.labels),
    cache(upstream_duration.labels),
)
_get_overhead_series = cache(overhead.labels)


def observe_request(
    *,
    api: str,
    operation: str | None,
    environment: str,
    status: int,
    duration_seconds: float,
    upstream_seconds: float,
    request_id: str,
    log_fields: Mapping[str, Any],
) -> None:
    """Records a request from the fields of its log line. Times are in seconds."""
    operation_label = operation or (SIGNED_OPERATION if api == "signed" else NO_OPERATION)
    exemplar = {"request_id": request_id} if len(request_id) <= MAX_EXEMPLAR_CHARACTERS else None
    requests_series = _get_requests_series(
        api,
        operation_label,
        environment,
        # Only the status class, to bound the number of series.
        f"{status // 100}xx",
        classify_outcome(status, log_fields),
    )
    # Exemplars help only to find failed or slow requests; successful ones are too many.
    requests_series.inc(exemplar=exemplar if status >= 500 else None)
    labels = (api, operation_label, environment)
    _observe_duration(_get_request_duration_series(*labels), duration_seconds, exemplar)
    # The times of parallel calls are added up, so they may exceed the duration of the request.
    _observe_duration(
        _get_overhead_series(*labels), max(duration_seconds - upstream_seconds, 0.0), exemplar
    )
    if upstream_seconds:
        _observe_duration(_get_upstream_duration_series(*labels), upstream_seconds, exemplar)


def _observe_duration(
    histogram: Histogram, seconds: float, exemplar: dict[str, str] | None
) -> None:
    histogram.observe(seconds, exemplar=exemplar if seconds >= MIN_EXEMPLAR_SECONDS else None)


def classify_outcome(status: int, log_fields: Mapping[str, Any]) -> str:
    """Returns the value of the label ``outcome`` for a request."""
    # The gateway's own limits come first, because by status they would count as "refused".
    reason = log_fields.get("reason")
    if reason == RATE_LIMIT_REASON:
        return "rate_limited"
    if reason == BROWNOUT_REASON:
        return "brownout"
    if status < 400:
        return "success"
    # nginx's code for a client that closed the connection before the response.
    if status == 499:
        return "client_disconnected"
    error = log_fields.get("error.type")
    if error == DATABASE_UNAVAILABLE:
        return DATABASE_UNAVAILABLE
    # An unexpected exception; the errors below were raised on purpose.
    if "exception.stacktrace" in log_fields:
        return "internal_error"
    if error in _FAILURE_OUTCOMES:
        return str(error)
    return "refused" if status < 500 else "failed"


def count_ignored_parameters(operation: str, count: int) -> None:
    """Counts unknown query parameters; ``operation`` is the name of a legacy operation."""
    ignored_parameters.labels(operation).inc(count)


def count_upstream_call(environment: str, method: str, path: str, outcome: str) -> None:
    """Counts a call; ``path`` is the endpoint's template, with placeholders for ids."""
    _get_upstream_calls_series(
        environment, _ENDPOINTS.get((method, path), OTHER_ENDPOINT), outcome
    ).inc()


def count_legacy_call(environment: str, operation: str, outcome: str) -> None:
    """Counts a request to the legacy service; ``operation`` is the name of an operation."""
    _get_legacy_calls_series(environment, operation, outcome).inc()


def render_metrics(accept_header: str, collector: Collector = REGISTRY) -> tuple[bytes, str]:
    """Renders metrics in the format that the Accept header asks for; returns it with its type."""
    encoder, content_type = choose_encoder(accept_header)
    return encoder(collector), content_type
