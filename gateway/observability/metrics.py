"""The Prometheus metrics of one process, for `/metrics`.

Label values come only from fixed sets: interfaces, operations, endpoints, environments, outcomes.
No key, merchant, path or id is a label, so no client can add a series.

With several workers, each series has a label ``worker``; see ``gateway.server.workers.admin_port``.
"""

import collections
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.observability.request_series import (
    RequestRecord,
    RequestSeries,
    TrafficCollector,
    UpstreamEndpoint,
)

# The `_created` series would double the number of series of counters and histograms.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # the library's own

# The default registry would add series about Python and its garbage collector.
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

RATE_LIMIT_REASON, BROWNOUT_REASON = "rate limit exceeded", "brownout"
"""Values of ``reason`` in a request's log line."""

DATABASE_UNAVAILABLE = "database_unavailable"
"""A value of ``error.type`` that is also an outcome."""

SIGNED_OPERATION, NO_OPERATION = "signed", "none"
"""Labels for requests without a legacy operation."""

CALL_COUNT_BUCKETS = (0, 1, 2, 3, 4, 6, 10, 20, 50, 100, 200, 500, 1000)

REFRESHED, FAILED, CANCELLED = "success", "failed", "cancelled"
"""Outcomes of a full refresh of a recipient cache."""


def _create_gauge(name: str, description: str, *labels: str) -> Gauge:
    return Gauge(f"payout_gateway_{name}", description, labels, registry=REGISTRY)


def _create_counter(name: str, description: str, *labels: str) -> Counter:
    return Counter(f"payout_gateway_{name}", description, labels, registry=REGISTRY)


# Plain numbers, which the scrape reads: the library's own metrics cost a tenth of a read.
traffic = TrafficCollector()
request_series = traffic.request_series
REGISTRY.register(traffic)
_STATUS = itemgetter(3)
invalid_http = _create_counter(
    "invalid_http_requests", "Connections or requests that are not valid HTTP."
)
ignored_parameters = _create_counter(
    "ignored_parameters", "Unknown query parameters, which are ignored.", "operation"
)
breaker_open = _create_gauge(
    "circuit_breaker_open",
    "Whether the circuit breaker of a service is open or half open, so that calls are not sent.",
    "service",
    "environment",
)
refused_credentials = _create_gauge(
    "refused_credentials",
    "Merchants whose credentials the service refuses (401) or denies access (403).",
    "environment",
)
upstream_connections = _create_gauge(
    "upstream_connections",
    "Connections to the service; each process may have `upstream.connections` of them.",
    "environment",
    "state",
)
queued_requests = _create_gauge("requests_queued", "Requests that wait for admission.")
database_errors = _create_counter("database_errors", "Failed accesses to the database.")
database_up = _create_gauge("database_up", "Whether the database can be read and written.")
rate_limiter_up = _create_gauge(
    "rate_limiter_backend_up", "Whether requests are counted in the configured backend."
)
in_doubt_writes = _create_gauge(
    "in_doubt_writes",
    "Writes sent more than a minute ago whose outcome is unknown, or whose request cannot go on.",
)
in_doubt_age_seconds = _create_gauge(
    "in_doubt_writes_oldest_age_seconds", "Time since the oldest write in doubt was sent."
)
open_writes = _create_gauge(
    "open_write_requests", "Requests that write and are not finished, in doubt or in progress."
)
# "Abandoned" is an older word for "superseded"; dashboards and alerts use the name.
superseded_batches = _create_gauge(
    "abandoned_batches", "Batches at the service that must not be started."
)
started_superseded_batches = _create_gauge(
    "abandoned_batches_started", "Those of them that were found started within the last day."
)
freezes = _create_gauge("write_freezes", "Write freezes in force.")
database_restored = _create_gauge(
    "database_restored",
    "Whether the database was restored from a backup and is not reconciled yet; no batch is "
    "started.",
)
api_keys = _create_gauge("api_keys", "API keys that are not revoked.", "environment")
clock_offset = _create_gauge(
    "clock_offset_seconds", "How far the service's clock is ahead of this machine's.", "environment"
)
recipient_caches = _create_gauge(
    "recipient_caches",
    "Recipient caches in memory, one for each merchant in each process.",
    "environment",
)
cache_entries = _create_gauge(
    "recipient_cache_entries", "Recipients in the recipient caches.", "environment"
)
cache_refreshes = _create_counter(
    "recipient_cache_refreshes",
    "Full refreshes of a recipient cache, by outcome.",
    "environment",
    "outcome",
)
cache_calls = Histogram(
    "payout_gateway_recipient_cache_upstream_calls",
    "Calls of the service for a list served from a recipient cache, including those of a full "
    "refresh that the request waited for.",
    ("environment",),
    buckets=CALL_COUNT_BUCKETS,
    registry=REGISTRY,
)
cache_stale = _create_counter(
    "recipient_cache_stale_entries",
    "Recipients that a full refresh found changed although their update date was the same; "
    "lists may have shown their old values.",
    "environment",
)
build_info = Info("payout_gateway_build", "The running version.", registry=REGISTRY)

_FAILURE_OUTCOMES = frozenset(
    {
        "in_doubt",
        "unreachable",
        "client_disconnected",
        "blocked",
        "overloaded",
        "refused_by_service",
        "service_error",
    }
)
"""Values of ``error.type`` that are an outcome; each is the ``error_type`` of a Failure."""


def find_request_series(api: str, operation: str | None, environment: str) -> RequestSeries:
    key = api, operation, environment
    if (series := request_series.get(key)) is None:
        label = operation or (SIGNED_OPERATION if api == "signed" else NO_OPERATION)
        series = request_series[key] = RequestSeries((api, label, environment))
    return series


pending_requests: list[RequestRecord] = []
pending_calls: list[tuple[UpstreamEndpoint, str, float]] = []
"""What was recorded since ``summarize_records``: requests, and calls of the service with their
endpoint, outcome and seconds."""


def summarize_records() -> None:
    """Adds the pending requests and calls to the series; the scrape and a timer call it."""
    # Only what is in the lists now: other threads may append meanwhile.
    requests = pending_requests[:]
    del pending_requests[: len(requests)]
    requests_by_series: dict[RequestSeries, list[RequestRecord]] = {}
    for request in requests:
        requests_by_series.setdefault(request[2].series, []).append(request)
    for series, group in requests_by_series.items():
        series.add_durations(group)
        for status, count in collections.Counter(map(_STATUS, group)).items():
            if status < 400:
                series.counts[status, "success"] += count
        for request in group:
            if request[3] >= 400:
                _count_unsuccessful_request(series, request)
    calls = pending_calls[:]
    del pending_calls[: len(calls)]
    seconds_by_outcome: dict[tuple[UpstreamEndpoint, str], list[float]] = {}
    for endpoint, outcome, seconds in calls:
        seconds_by_outcome.setdefault((endpoint, outcome), []).append(seconds)
    for (endpoint, outcome), durations in seconds_by_outcome.items():
        upstream = traffic.find_upstream_series(endpoint)
        upstream.counts[outcome] += len(durations)
        upstream.duration.observe_all(durations)


def _count_unsuccessful_request(series: RequestSeries, request: RequestRecord) -> None:
    status, upstream_seconds, log_fields = request[3], request[6], request[7]
    outcome = classify_outcome(status, log_fields)
    series.counts[status, outcome] += 1
    # The service's own refusals, which are passed on, took time there.
    if outcome == "refused" and status in (401, 403) and not upstream_seconds:
        traffic.authentication_failure_counts[series.labels[0]] += 1


def classify_outcome(status: int, log_fields: Mapping[str, Any]) -> str:
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


def render_metrics(accept_header: str, collector: Collector = REGISTRY) -> tuple[bytes, str]:
    """Renders metrics in the format that the Accept header asks for; returns it with its type."""
    summarize_records()
    encoder, content_type = choose_encoder(accept_header)
    return encoder(collector), content_type
