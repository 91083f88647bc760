"""`/metrics` of several workers: their figures added up, one series for all.

A counter never goes back: what a worker had counted is kept when it ends, up to the last time that
it was asked. Its parent asks before it has workers retire, so that only what a worker counts while it
retires, or between a scrape and its death, is lost.

Prometheus's own way of adding processes up (files that all of them map) has no exemplars, and no
figures of the processes themselves.
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
"""What workers are asked for: it is the form that has exemplars."""

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
"""Of every other figure that is not counted each worker tells the same, or the farthest from zero
is the one to know.
"""

Ask = Callable[[Sequence[Path]], Awaitable[list[str | None]]]
"""The page of every worker, None where one does not answer in time."""


class Figures(Collector):
    """What several processes said, as if one had."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[Metric]:
        yield from self._found


class Added:
    """Made once; ``render_metrics`` is asked for by scrapers."""

    def __init__(self, workers: Callable[[], Sequence[Path]], ask: Ask) -> None:
        self._workers = workers
        self._ask = ask
        self._last: dict[Path, list[Metric]] = {}
        self._gone: list[Metric] = []
        self._turn = asyncio.Lock()  # or one that ends meanwhile might be counted twice

    async def look(self, workers: Sequence[Path]) -> None:
        """Takes these workers' figures."""
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
