"""`/metrics` of several workers, aggregated to one series each.

Counters never decrease: the values of a worker that exited are kept, as of its last scrape. The
supervisor scrapes workers before it retires them, so that only the counts of a retiring worker, or of
the time between the last scrape and a crash, are lost.

The multiprocess mode of prometheus_client (files mapped by all processes) supports neither exemplars
nor process metrics.
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

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
"""The format that workers are asked for, because it has exemplars."""

COUNTED = ("counter", "histogram")

SUMMED = frozenset(
    {
        "payout_gateway_requests_in_flight",
        "payout_gateway_recipient_caches",
        "payout_gateway_recipient_cache_entries",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
)
LEAST = frozenset(
    {
        "payout_gateway_database_up",
        "payout_gateway_rate_limiter_backend_up",
        "process_start_time_seconds",
    }
)
"""Of these gauges the minimum is reported; of the gauges not listed, the value farthest from zero."""

Ask = Callable[[Sequence[Path]], Awaitable[list[str | None]]]
"""Returns the metrics page of each worker, None if one does not answer in time."""


class Figures(Collector):
    """Exposes metrics of several processes as those of one."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[Metric]:
        yield from self._found


class Added:
    """Scrapes the workers and keeps the counters of those that exited."""

    def __init__(self, workers: Callable[[], Sequence[Path]], ask: Ask) -> None:
        self._workers = workers
        self._ask = ask
        self._last: dict[Path, list[Metric]] = {}
        self._gone: list[Metric] = []
        self._turn = asyncio.Lock()  # else a worker that exits meanwhile might be counted twice

    async def look(self, workers: Sequence[Path]) -> None:
        """Update the stored metrics of these workers."""
        for worker, said in zip(workers, await self._ask(workers), strict=True):
            if said is not None:
                read = text_string_to_metric_families(said)  # type: ignore[no-untyped-call] # the library's own
                self._last[worker] = list(read)

    async def page(self, accepted: str) -> tuple[bytes, str]:
        async with self._turn:
            return await self._page(accepted)

    async def _page(self, accepted: str) -> tuple[bytes, str]:
        await self.look(self._workers())
        workers = set(self._workers())
        for worker in self._last.keys() - workers:
            # Gauges end with their worker, but counters must not decrease.
            left = [one for one in self._last.pop(worker) if one.type in COUNTED]
            self._gone = sum_metrics([self._gone, left])
        running = Metric("payout_gateway_workers", "Workers that accept connections.", "gauge")
        running.add_sample(running.name, {}, len(workers))
        return render_metrics(
            accepted, Figures([*sum_metrics([self._gone, *self._last.values()]), running])
        )


def sum_metrics(pages: Iterable[Iterable[Metric]]) -> list[Metric]:
    found: dict[str, Metric] = {}
    samples: dict[str, dict[tuple[str, ...], Sample]] = {}
    for metric in (metric for one in pages for metric in one):
        found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        into = samples.setdefault(metric.name, {})
        for sample in metric.samples:
            key = (sample.name, *_spelled(sample.labels))
            into[key] = _both(metric, into[key], sample) if key in into else sample
    for name, metric in found.items():
        metric.samples = list(samples[name].values())
    return list(found.values())


def _spelled(labels: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(labels):
        yield from (name, labels[name])


def _both(metric: Metric, one: Sample, other: Sample) -> Sample:
    exemplars = [sample.exemplar for sample in (one, other) if sample.exemplar]
    newest = max(exemplars, key=lambda each: each.timestamp or 0, default=None)
    return one._replace(value=_value(metric, one.value, other.value), exemplar=newest)


def _value(metric: Metric, one: float, other: float) -> float:
    if metric.type in COUNTED or metric.name in SUMMED:
        return one + other
    if math.isnan(one) or math.isnan(other):
        return other if math.isnan(one) else one
    return min(one, other) if metric.name in LEAST else max(one, other, key=abs)
