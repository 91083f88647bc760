"""Plain counts of requests and calls, and the collector that turns them into metrics at a scrape."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import repeat
from operator import add, itemgetter, sub
from typing import Any, TypeAlias

import msgspec
from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from mappings.current import ENDPOINTS

# The buckets below 50 ms resolve the gateway's own overhead; 25 s is the default upstream timeout.
DURATION_BUCKETS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 60.0),
)
_BUCKET_LABELS = (*map(str, DURATION_BUCKETS_SECONDS), "+Inf")

MIN_EXEMPLAR_SECONDS = 0.1
"""Only slower requests get an exemplar: for the others it costs more than it is worth."""

MAX_EXEMPLAR_CHARACTERS = 128 - len("request_id")
"""OpenMetrics limits an exemplar's labels, names and values together, to 128 characters."""

OTHER_ENDPOINT = "other"
"""The label of endpoints that are not listed."""

_ENDPOINTS: Mapping[tuple[str, str], str] = {
    (endpoint.method, endpoint.path): f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS
}

StatusAndOutcome: TypeAlias = tuple[int, str]


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
    """Counts of durations by bucket, their sum in seconds, and the newest exemplar of a bucket."""

    __slots__ = ("counts", "exemplars", "sum")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKET_LABELS)
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(DURATION_BUCKETS_SECONDS, seconds)] += 1
        self.sum += seconds

    def observe_all(self, durations: Iterable[float]) -> None:
        observed = [*durations]
        count_by_bucket(self.counts, DURATION_BUCKETS_SECONDS, observed)
        self.sum += sum(observed)

    def record_exemplar(self, request_id: str, seconds: float) -> None:
        if seconds < MIN_EXEMPLAR_SECONDS:
            return
        bucket = sum(seconds > bound for bound in DURATION_BUCKETS_SECONDS)
        self.exemplars[bucket] = Exemplar({"request_id": request_id}, seconds, time.time())

    def add_to_family(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        cumulative, buckets = 0, list[tuple[str, float] | tuple[str, float, Exemplar]]()
        for position, count in enumerate(self.counts):
            cumulative += count
            exemplar = self.exemplars.get(position)
            bucket = _BUCKET_LABELS[position], float(cumulative)
            buckets.append((*bucket, exemplar) if exemplar else bucket)
        if cumulative:
            family.add_metric(labels, buckets, self.sum)


class RequestSeries:
    """The counts of one api, operation and environment; ``labels`` are these three."""

    __slots__ = ("counts", "duration", "exemplars", "labels", "overhead", "upstream")

    def __init__(self, labels: tuple[str, str, str]) -> None:
        self.labels = labels
        self.counts: dict[StatusAndOutcome, int] = {}
        self.exemplars: dict[StatusAndOutcome, Exemplar] = {}
        self.duration, self.overhead = DurationHistogram(), DurationHistogram()
        self.upstream = DurationHistogram()

    def count(self, status: int, outcome: str, count: int = 1) -> None:
        self.counts[status, outcome] = self.counts.get((status, outcome), 0) + count

    def add_durations(self, requests: Sequence[RequestRecord]) -> None:
        seconds, upstream_seconds = split_durations(requests)
        self.duration.observe_all(seconds)
        # The times of parallel calls are added up, so they may exceed the duration of the request.
        own_seconds = map(max, map(sub, seconds, upstream_seconds), repeat(0.0))
        self.overhead.observe_all(own_seconds)
        self.upstream.observe_all(filter(None, upstream_seconds))

    def record_exemplars(self, result: StatusAndOutcome, request: RequestRecord) -> None:
        """Records a failed or slow request as exemplar, unless its id is too long for one."""
        _, request_id, _, status, duration_seconds, _, upstream_seconds, _ = request
        if len(request_id) > MAX_EXEMPLAR_CHARACTERS:
            return
        if status >= 500:
            self.exemplars[result] = Exemplar({"request_id": request_id}, 1, time.time())
        self.duration.record_exemplar(request_id, duration_seconds)
        self.overhead.record_exemplar(request_id, max(duration_seconds - upstream_seconds, 0.0))
        self.upstream.record_exemplar(request_id, upstream_seconds)


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
    """The members of the log line."""


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

    def add(self, other: UpstreamSeries) -> None:
        self.counts.update(other.counts)
        self.duration.sum += other.duration.sum
        self.duration.counts = [*map(add, self.duration.counts, other.duration.counts)]


class TrafficCollector(Collector):
    """The counts of one process; only its event loop changes them."""

    def __init__(self) -> None:
        self.running_requests: dict[object, Sized] = {}
        """The requests that are processed, by server."""
        self.request_series: dict[tuple[str, str | None, str], RequestSeries] = {}
        self.upstream_series: dict[UpstreamEndpoint, UpstreamSeries] = {}
        self.legacy_call_counts: dict[tuple[str, str, str], int] = {}
        """By environment, operation and outcome."""
        self.upstream_retry_counts: dict[str, int] = {}
        """By environment."""
        self.database_durations = {"read": DurationHistogram(), "write": DurationHistogram()}
        self.event_loop_lag = DurationHistogram()
        self.authentication_failure_counts = {"legacy": 0, "signed": 0}
        """By interface."""

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_requests()
        yield from self._collect_durations()
        in_flight = GaugeMetricFamily(
            "payout_gateway_requests_in_flight", "Requests that are being processed."
        )
        in_flight.add_metric((), sum(map(len, self.running_requests.values())))
        yield in_flight
        yield self._collect_upstream_calls()
        yield from self._collect_upstream_durations_and_retries()
        yield from self._collect_process_metrics()
        legacy_calls = CounterMetricFamily(
            "payout_gateway_legacy_service_calls",
            "Requests forwarded to the legacy service, or sent to it for comparison, by outcome.",
            labels=("environment", "operation", "outcome"),
        )
        for labels, count in self.legacy_call_counts.items():
            legacy_calls.add_metric(labels, count)
        yield legacy_calls

    def _collect_requests(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "payout_gateway_requests",
            "Requests answered, by outcome.",
            labels=("api", "operation", "environment", "status", "code", "outcome"),
        )
        for series in self.request_series.values():
            for (status, outcome), count in series.counts.items():
                family.add_metric(
                    (*series.labels, f"{status // 100}xx", str(status), outcome),
                    count,
                    exemplar=series.exemplars.get((status, outcome)),
                )
        yield family

    def _collect_durations(self) -> Iterator[Metric]:
        labels = ("api", "operation", "environment")
        durations = HistogramMetricFamily(
            "payout_gateway_request_duration_seconds",
            "Time from the first byte of a request to its response.",
            labels=labels,
        )
        upstream = HistogramMetricFamily(
            "payout_gateway_upstream_request_duration_seconds",
            "Time that a request spent in calls of the service; the times of parallel calls are "
            "added.",
            labels=labels,
        )
        overhead = HistogramMetricFamily(
            "payout_gateway_overhead_seconds",
            "Duration of a request less its time in calls of the service.",
            labels=labels,
        )
        for series in self.request_series.values():
            series.duration.add_to_family(durations, series.labels)
            series.upstream.add_to_family(upstream, series.labels)
            series.overhead.add_to_family(overhead, series.labels)
        yield from (durations, upstream, overhead)

    def _collect_upstream_calls(self) -> Metric:
        family = CounterMetricFamily(
            "payout_gateway_upstream_calls",
            "Calls of the service, by outcome; a retry is part of the same call.",
            labels=("environment", "endpoint", "outcome"),
        )
        for labels, series in self._merge_upstream_series().items():
            for outcome, count in series.counts.items():
                family.add_metric((*labels, outcome), count)
        return family

    def _merge_upstream_series(self) -> dict[tuple[str, str], UpstreamSeries]:
        """Returns the series by environment and label: endpoints that are not listed are one."""
        merged: dict[tuple[str, str], UpstreamSeries] = {}
        for (environment, method, path), series in self.upstream_series.items():
            label = _ENDPOINTS.get((method, path), OTHER_ENDPOINT)
            merged.setdefault((environment, label), UpstreamSeries()).add(series)
        return merged

    def _collect_upstream_durations_and_retries(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "payout_gateway_upstream_call_duration_seconds",
            "Duration of a call of the service, with its retry, by endpoint.",
            labels=("environment", "endpoint"),
        )
        for labels, series in self._merge_upstream_series().items():
            series.duration.add_to_family(durations, labels)
        retries = CounterMetricFamily(
            "payout_gateway_upstream_retries",
            "Reads that were sent again after a failure of the connection.",
            labels=("environment",),
        )
        for environment, count in self.upstream_retry_counts.items():
            retries.add_metric((environment,), count)
        yield from (durations, retries)

    def _collect_process_metrics(self) -> Iterator[Metric]:
        database = HistogramMetricFamily(
            "payout_gateway_database_duration_seconds",
            "Time until a transaction has ended, with the time it waits for its turn.",
            labels=("kind",),
        )
        for kind, duration in self.database_durations.items():
            duration.add_to_family(database, (kind,))
        lag = HistogramMetricFamily(
            "payout_gateway_event_loop_lag_seconds",
            "How late the event loop is, measured four times a second: it is busy, or the machine is.",
            labels=(),
        )
        self.event_loop_lag.add_to_family(lag, ())
        failures = CounterMetricFamily(
            "payout_gateway_authentication_failures",
            "Requests refused for their key, signature or client address.",
            labels=("api",),
        )
        for api, count in self.authentication_failure_counts.items():
            failures.add_metric((api,), count)
        yield from (database, lag, failures)
