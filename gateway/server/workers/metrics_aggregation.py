"""`/metrics` of several workers, aggregated to one series each.

Counters never decrease: the values of a worker that died are kept, as of its last scrape.

The multiprocess mode of prometheus_client (files mapped by all processes) supports neither
exemplars nor process metrics.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.observability.metrics import render_metrics

OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0"
"""The format that workers are asked for, because it has exemplars."""

CUMULATIVE_TYPES = ("counter", "histogram")

SUMMED_GAUGES = frozenset(
    {
        "payout_gateway_requests_in_flight",
        "payout_gateway_requests_queued",
        "payout_gateway_upstream_connections",
        "payout_gateway_recipient_caches",
        "payout_gateway_recipient_cache_entries",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
)
MINIMUM_GAUGES = frozenset(
    {
        "payout_gateway_database_up",
        "payout_gateway_rate_limiter_backend_up",
        "process_start_time_seconds",
    }
)
"""Gauges reported as the minimum; all other gauges are reported as the value farthest from zero."""

ScrapeWorkers = Callable[[Sequence[Path]], Awaitable[list[str | None]]]
"""Returns the metrics page of each worker, None if one does not answer in time."""


class AggregatedCollector(Collector):
    """Exposes metrics of several processes as those of one."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


class MetricsAggregator:
    """Scrapes the workers and keeps the counters of those that exited."""

    def __init__(
        self, list_workers: Callable[[], Sequence[Path]], scrape_workers: ScrapeWorkers
    ) -> None:
        self._list_workers = list_workers
        self._scrape_workers = scrape_workers
        self._last_scrapes: dict[Path, list[Metric]] = {}
        self._exited_totals: list[Metric] = []
        self._scrape_lock = (
            asyncio.Lock()
        )  # otherwise a worker that exits during a scrape might be counted twice

    async def render_page(self, accept_header: str) -> tuple[bytes, str]:
        async with self._scrape_lock:
            return await self._scrape_and_render(accept_header)

    async def _scrape_and_render(self, accept_header: str) -> tuple[bytes, str]:
        scraped_workers = self._list_workers()
        pages = await self._scrape_workers(scraped_workers)
        for worker, page in zip(scraped_workers, pages, strict=True):
            if page is not None:
                families = text_string_to_metric_families(page)  # type: ignore[no-untyped-call] # the library's own
                self._last_scrapes[worker] = list(families)
        # Listed again: a worker that exited during the scrape must count as exited.
        workers = set(self._list_workers())
        for worker in self._last_scrapes.keys() - workers:
            # Gauges end with their worker, but counters must not decrease.
            exited_metrics = [
                metric
                for metric in self._last_scrapes.pop(worker)
                if metric.type in CUMULATIVE_TYPES
            ]
            self._exited_totals = merge_metric_pages([self._exited_totals, exited_metrics])
        worker_gauge = Metric("payout_gateway_workers", "Workers that accept connections.", "gauge")
        worker_gauge.add_sample(worker_gauge.name, {}, len(workers))
        return render_metrics(
            accept_header,
            AggregatedCollector(
                [
                    *merge_metric_pages([self._exited_totals, *self._last_scrapes.values()]),
                    worker_gauge,
                ]
            ),
        )


def merge_metric_pages(pages: Iterable[Iterable[Metric]]) -> list[Metric]:
    metrics_by_name: dict[str, Metric] = {}
    samples: dict[str, dict[tuple[str, ...], Sample]] = {}
    for metric in (metric for page in pages for metric in page):
        metrics_by_name.setdefault(
            metric.name, Metric(metric.name, metric.documentation, metric.type)
        )
        metric_samples = samples.setdefault(metric.name, {})
        for sample in metric.samples:
            key = (sample.name, *_iter_sorted_label_parts(sample.labels))
            metric_samples[key] = (
                _merge_samples(metric, metric_samples[key], sample)
                if key in metric_samples
                else sample
            )
    for name, metric in metrics_by_name.items():
        metric.samples = list(samples[name].values())
    return list(metrics_by_name.values())


def _iter_sorted_label_parts(labels: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(labels):
        yield from (name, labels[name])


def _merge_samples(metric: Metric, left: Sample, right: Sample) -> Sample:
    exemplars = [sample.exemplar for sample in (left, right) if sample.exemplar]
    newest = max(exemplars, key=lambda exemplar: exemplar.timestamp or 0, default=None)
    return left._replace(value=_merge_values(metric, left.value, right.value), exemplar=newest)


def _merge_values(metric: Metric, left: float, right: float) -> float:
    if metric.type in CUMULATIVE_TYPES or metric.name in SUMMED_GAUGES:
        return left + right
    # NaN is the value of a gauge that this worker could not determine.
    if math.isnan(left) or math.isnan(right):
        return right if math.isnan(left) else left
    return min(left, right) if metric.name in MINIMUM_GAUGES else max(left, right, key=abs)
