"""Plain counts of requests and calls, and the collector that turns them into metrics at a scrape."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import accumulate, repeat
from operator import itemgetter, sub
from typing import Any, TypeAlias

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from mappings.current import ENDPOINTS

# The buckets below 50 ms resolve the gateway's own overhead; 25 s is the default upstream timeout.
DURATION_BUCKETS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 60.0),
)
_BUCKET_LABELS = (*map(str, DURATION_BUCKETS_SECONDS), "+Inf")

OTHER_ENDPOINT = "other"

_ENDPOINT_LABELS = {f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS}


def count_by_bucket(counts: list[int], bounds: Sequence[float], durations: Iterable[float]) -> None:
    """Adds durations to the counts of buckets with these upper bounds and one without."""
    # Sorted, so that bounds are looked for, of which there are fewer.
    ordered, start = sorted(durations), 0
    for bucket, bound in enumerate(bounds):
        end = bisect_right(ordered, bound, start)
        counts[bucket] += end - start
        start = end
    counts[len(bounds)] += len(ordered) - start


class DurationHistogram:
    """Counts of durations by bucket, and their sum in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKET_LABELS)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(DURATION_BUCKETS_SECONDS, seconds)] += 1
        self.sum += seconds

    def observe_all(self, durations: Iterable[float]) -> None:
        observed = [*durations]
        count_by_bucket(self.counts, DURATION_BUCKETS_SECONDS, observed)
        self.sum += sum(observed)


class RequestSeries:
    """The counts of one api, operation and environment; ``labels`` are these three."""

    __slots__ = ("counts", "duration", "labels", "overhead", "upstream")

    def __init__(self, labels: tuple[str, str, str]) -> None:
        self.labels = labels
        self.counts = Counter[tuple[int, str]]()
        self.duration, self.overhead = DurationHistogram(), DurationHistogram()
        self.upstream = DurationHistogram()

    def add_durations(self, requests: Sequence[RequestRecord]) -> None:
        seconds, upstream_seconds = split_durations(requests)
        self.duration.observe_all(seconds)
        # The times of parallel calls are added up, so they may exceed the duration of the request.
        own_seconds = map(max, map(sub, seconds, upstream_seconds), repeat(0.0))
        self.overhead.observe_all(own_seconds)
        self.upstream.observe_all(filter(None, upstream_seconds))


class RequestSource(msgspec.Struct, frozen=True, eq=False):
    """A key and what it asks for: all that its requests for one operation have in common.

    ``usage_key`` is the tenant, key and operation that a request counts for.
    """

    api: str
    method: str
    operation: str | None
    tenant: tuple[str, str] | None
    key_name: str | None
    usage_key: tuple[tuple[str, str], str, str]
    series: RequestSeries
    members: str


RequestRecord: TypeAlias = tuple[
    float, str, RequestSource, int, float, int, float, Mapping[str, Any]
]
"""The time; request id; source; status; seconds, upstream calls and upstream seconds; further
fields of the log line. A plain tuple: appending it to a list is all that a request costs, and the
work is done for many requests at once."""

_SECONDS, _UPSTREAM_SECONDS = itemgetter(4), itemgetter(6)


def split_durations(requests: Sequence[RequestRecord]) -> tuple[list[float], list[float]]:
    """Returns the seconds and the upstream seconds of requests."""
    return [*map(_SECONDS, requests)], [*map(_UPSTREAM_SECONDS, requests)]


UpstreamEndpoint: TypeAlias = tuple[str, str, str]
"""Environment, method and path template."""


class UpstreamSeries:
    """The counts by outcome and the durations of the calls of one endpoint."""

    __slots__ = ("counts", "duration")

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.duration = DurationHistogram()


class TrafficCollector(Collector):
    """The counts of one process; only its event loop changes them."""

    def __init__(self) -> None:
        self.running_requests: dict[object, Sized] = {}
        """The requests that are processed, by server."""
        self.request_series: dict[tuple[str, str | None, str], RequestSeries] = {}
        self.upstream_series: dict[tuple[str, str], UpstreamSeries] = {}
        """By environment and label of the endpoint."""
        self.legacy_call_counts = Counter[tuple[str, str, str]]()
        """By environment, operation and outcome."""
        self.upstream_retry_counts = Counter[str]()
        """By environment."""
        self.database_durations = {"read": DurationHistogram(), "write": DurationHistogram()}
        self.event_loop_lag = DurationHistogram()
        self.authentication_failure_counts = {"legacy": 0, "signed": 0}
        """By interface."""

    def collect(self) -> Iterator[Metric]:
        requests = self.request_series.values()
        labels = ("api", "operation", "environment")
        yield _build_counter(
            "requests",
            "Requests answered, by outcome.",
            (*labels, "status", "code", "outcome"),
            {
                (*series.labels, f"{status // 100}xx", str(status), outcome): count
                for series in requests
                for (status, outcome), count in series.counts.items()
            },
        )
        for name, text, attribute in _REQUEST_DURATIONS:
            durations = {series.labels: getattr(series, attribute) for series in requests}
            yield _build_histogram(name, text, labels, durations)
        yield GaugeMetricFamily(
            "payout_gateway_requests_in_flight",
            "Requests that are being processed.",
            sum(map(len, self.running_requests.values())),
        )
        yield from self._collect_calls()
        yield _build_histogram(
            "database_duration_seconds",
            "Time until a transaction has ended, with the time it waits for its turn.",
            ("kind",),
            {(kind,): duration for kind, duration in self.database_durations.items()},
        )
        yield _build_histogram(
            "event_loop_lag_seconds",
            "How late the event loop is, measured four times a second: it is busy, or the machine is.",
            (),
            {(): self.event_loop_lag},
        )
        yield _build_counter(
            "authentication_failures",
            "Requests refused for their key, signature or client address.",
            ("api",),
            {(api,): count for api, count in self.authentication_failure_counts.items()},
        )

    def _collect_calls(self) -> Iterator[Metric]:
        upstream, labels = self.upstream_series, ("environment", "endpoint")
        yield _build_counter(
            "upstream_calls",
            "Calls of the service, by outcome; a retry is part of the same call.",
            (*labels, "outcome"),
            {
                (*endpoint, outcome): count
                for endpoint, series in upstream.items()
                for outcome, count in series.counts.items()
            },
        )
        yield _build_histogram(
            "upstream_call_duration_seconds",
            "Duration of a call of the service, with its retry, by endpoint.",
            labels,
            {endpoint: series.duration for endpoint, series in upstream.items()},
        )
        yield _build_counter(
            "upstream_retries",
            "Reads that were sent again after a failure of the connection.",
            ("environment",),
            {(name,): count for name, count in self.upstream_retry_counts.items()},
        )
        yield _build_counter(
            "legacy_service_calls",
            "Requests forwarded to the legacy service, or sent to it for comparison, by outcome.",
            ("environment", "operation", "outcome"),
            self.legacy_call_counts,
        )

    def find_upstream_series(self, endpoint: UpstreamEndpoint) -> UpstreamSeries:
        """Finds the series of an endpoint; endpoints that are not listed have one together."""
        environment, method, path = endpoint
        label = f"{method} {path}"
        if label not in _ENDPOINT_LABELS:
            label = OTHER_ENDPOINT
        return self.upstream_series.setdefault((environment, label), UpstreamSeries())


_REQUEST_DURATIONS = (
    (
        "request_duration_seconds",
        "Time from the first byte of a request to its response.",
        "duration",
    ),
    (
        "upstream_request_duration_seconds",
        "Time that a request spent in calls of the service; the times of parallel calls are added.",
        "upstream",
    ),
    (
        "overhead_seconds",
        "Duration of a request less its time in calls of the service.",
        "overhead",
    ),
)
"""Name, description and attribute of each histogram of ``RequestSeries``."""


def _build_counter(
    name: str, text: str, labels: Sequence[str], counts: Mapping[Any, float]
) -> Metric:
    family = CounterMetricFamily(f"payout_gateway_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _build_histogram(
    name: str, text: str, labels: Sequence[str], histograms: Mapping[Any, DurationHistogram]
) -> Metric:
    family = HistogramMetricFamily(f"payout_gateway_{name}", text, labels=labels)
    for values, histogram in histograms.items():
        if any(histogram.counts):
            buckets = [*zip(_BUCKET_LABELS, accumulate(histogram.counts), strict=True)]
            family.add_metric(values, buckets, histogram.sum)
    return family
