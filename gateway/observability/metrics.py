"""What the gateway counts of itself, for `/metrics`; one process's figures.

Labels have values of ours alone: faces, operations, endpoints, environments, kinds of outcome. No
key, merchant, path or id is one, so that nothing a client does adds a series. A request is found
in the log by its exemplar, the id that its line has too (OpenMetrics; older formats have none).

Several workers are added up by their parent, see ``gateway.server.workers.metrics``.
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

OVER_LIMIT, BROWNOUT = "over the limit", "a brownout"
"""Why a request was refused, as its line in the log has it."""

SIGNED, NO_OPERATION, ELSEWHERE = "signed", "none", "other"
"""In the place of an operation, for requests that have none; and of an endpoint that is not listed."""

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 25, 60),
)

CALLS = (0, 1, 2, 3, 4, 6, 10, 20, 50, 100, 200, 500, 1000)

READ, FAILED, CANCELLED = "read", "failed", "cancelled"
"""What may come of a whole reading."""

EXEMPLAR_SECONDS = 0.1
"""From here on a request is worth finding; of the others an exemplar would cost more than it tells."""

EXEMPLAR_CHARACTERS = 128 - len("request_id")
"""What OpenMetrics leaves for the value."""


def _named(name: str) -> str:
    return f"payout_gateway_{name}"


requests = Counter(
    _named("requests"),
    "Requests answered, by what came of them.",
    ("face", "operation", "environment", "status", "outcome"),
    registry=REGISTRY,
)
seconds = Histogram(
    _named("request_seconds"),
    "How long requests took: at the service, and the rest, which is the gateway's own.",
    ("face", "operation", "part"),
    buckets=SECONDS,
    registry=REGISTRY,
)
in_flight = Gauge(
    _named("requests_in_flight"), "Requests that are being answered now.", registry=REGISTRY
)
malformed = Counter(
    _named("malformed_requests"), "Requests that are no HTTP, or not any longer.", registry=REGISTRY
)
ignored = Counter(
    _named("ignored_parameters"),
    "Query parameters that an operation does not have, and that changed nothing.",
    ("operation",),
    registry=REGISTRY,
)
calls = Counter(
    _named("upstream_calls"),
    "Calls of the service, by what came of them; a repeated attempt is the same call.",
    ("environment", "endpoint", "outcome"),
    registry=REGISTRY,
)
legacy_calls = Counter(
    _named("legacy_calls"),
    "Requests that went to the legacy service, to be forwarded or compared, by what came of them.",
    ("environment", "operation", "outcome"),
    registry=REGISTRY,
)
state_errors = Counter(_named("state_errors"), "Uses of the state that failed.", registry=REGISTRY)
state_up = Gauge(_named("state_up"), "Whether the state can be used.", registry=REGISTRY)
limits_up = Gauge(
    _named("limits_up"), "Whether requests are counted as configured.", registry=REGISTRY
)
unsettled = Gauge(
    _named("unsettled_writes"),
    "Writes sent more than a minute ago of which nobody knows what became, or after which the "
    "request could not be carried on.",
    registry=REGISTRY,
)
unsettled_age = Gauge(
    _named("unsettled_oldest_seconds"),
    "How long ago the first of them was sent.",
    registry=REGISTRY,
)
journal_open = Gauge(
    _named("journal_open"), "Requests that write and are not over yet.", registry=REGISTRY
)
abandoned = Gauge(
    _named("abandoned_batches"),
    "Batches left at the service that nobody may start.",
    registry=REGISTRY,
)
recorded = Counter(
    _named("recorded_requests"),
    "Requests that were to be recorded, by what came of it.",
    ("outcome",),
    registry=REGISTRY,
)
freezes = Gauge(_named("freezes"), "Stops of writes that an operator made.", registry=REGISTRY)
restored = Gauge(
    _named("state_restored"),
    "Whether the state is an older one that was put back, so that no batch is started until it is "
    "reconciled.",
    registry=REGISTRY,
)
keys = Gauge(_named("keys"), "API keys that are not revoked.", ("environment",), registry=REGISTRY)
clock_offset = Gauge(
    _named("clock_offset_seconds"),
    "How far the service's clock is ahead of this machine's.",
    ("environment",),
    registry=REGISTRY,
)
indexes = Gauge(
    _named("indexes"),
    "Indexes of recipients in memory, one for each merchant in each process.",
    ("environment",),
    registry=REGISTRY,
)
index_recipients = Gauge(
    _named("index_recipients"), "Recipients in them.", ("environment",), registry=REGISTRY
)
index_age = Gauge(
    _named("index_oldest_seconds"),
    "How long ago the whole of one was read last; of the oldest.",
    ("environment",),
    registry=REGISTRY,
)
index_readings = Counter(
    _named("index_readings"),
    "Readings of all of a merchant's recipients for an index, by what came of them.",
    ("environment", "outcome"),
    registry=REGISTRY,
)
index_calls = Histogram(
    _named("index_calls"),
    "Calls of the service that a question made which an index answered, a whole reading that it "
    "began and waited for among them.",
    ("environment",),
    buckets=CALLS,
    registry=REGISTRY,
)
index_undated = Counter(
    _named("index_undated_changes"),
    "Recipients that a whole reading found changed although their update date had not moved; until "
    "then lists may have shown them as they were.",
    ("environment",),
    registry=REGISTRY,
)
build = Info(_named("build"), "What runs.", registry=REGISTRY)

_ENDPOINTS: Mapping[tuple[str, str], str] = {
    (one.method, one.path): f"{one.method} {one.path}" for one in ENDPOINTS
}
_OF_FAILURES = {
    "Unknown": "unknown",
    "Unreachable": "unreachable",
    "Halted": "halted",
    "Overloaded": "overloaded",
    "Refused": "refused_by_service",
}


# Each series is looked for once: labels have few values, and the library's search takes its time.
_requests, _seconds, _calls = cache(requests.labels), cache(seconds.labels), cache(calls.labels)
_legacy_calls = cache(legacy_calls.labels)


def observe_request(
    *,
    face: str,
    operation: str | None,
    environment: str,
    status: int,
    took: float,
    at_service: float,
    request_id: str,
    told: Mapping[str, Any],
) -> None:
    """One request, as its line in the log tells it; times in seconds."""
    named = operation or (SIGNED if face == "signed" else NO_OPERATION)
    found = {"request_id": request_id} if len(request_id) <= EXEMPLAR_CHARACTERS else None
    counted = _requests(
        face, named, environment, f"{status // 100}xx", classify_outcome(status, told)
    )
    counted.inc(exemplar=found if status >= 500 else None)
    # Reads side by side are at the service for longer together than the request took.
    _took(face, named, "gateway", max(took - at_service, 0.0), found)
    if at_service:
        _took(face, named, "service", at_service, found)


def _took(face: str, named: str, part: str, of_it: float, found: dict[str, str] | None) -> None:
    slow = found if of_it >= EXEMPLAR_SECONDS else None
    _seconds(face, named, part).observe(of_it, exemplar=slow)


def classify_outcome(status: int, told: Mapping[str, Any]) -> str:
    """What came of a request, in one word of a few."""
    why = told.get("why")
    if why == OVER_LIMIT:
        return "limited"
    if why == BROWNOUT:
        return "brownout"
    if status < 400:
        return "answered"
    if status == 499:
        return "client_gone"
    if "state" in told:
        return "state_unavailable"
    if "raised_at" in told:
        return "fault"
    return _OF_FAILURES.get(str(told.get("failure")), "refused" if status < 500 else "failed")


def count_ignored_parameters(operation: str, count: int) -> None:
    """``operation`` by its name."""
    ignored.labels(operation).inc(count)


def count_call(environment: str, method: str, path: str, came_of_it: str) -> None:
    """``path`` as the endpoint has it, with the names of its ids."""
    _calls(environment, _ENDPOINTS.get((method, path), ELSEWHERE), came_of_it).inc()


def count_legacy_call(environment: str, operation: str, came_of_it: str) -> None:
    """``operation`` by its name."""
    _legacy_calls(environment, operation, came_of_it).inc()


def render_metrics(accepted: str, figures: Collector = REGISTRY) -> tuple[bytes, str]:
    """Figures in the form that a scraper takes, and the name of that."""
    encoder, content_type = choose_encoder(accepted)
    return encoder(figures), content_type
