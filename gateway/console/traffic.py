"""The traffic page: requests, errors and latency by operation and merchant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.console.charts import (
    Plot,
    build_stacked_bar_plot,
    format_axis_time_labels,
    list_time_span_starts,
)
from gateway.console.dependencies import ConsoleDependencies
from gateway.console.pages import Pages
from gateway.storage import Store
from gateway.storage.request_counts import (
    BUCKET_BOUNDS_MS,
    HOUR,
    MINUTE,
    Part,
    RequestCounts,
    load_request_counts,
    sum_request_counts,
)

BAR_SIZE_BY_HOURS: Mapping[int, timedelta] = {1: MINUTE, 6: 5 * MINUTE, 24: HOUR, 48: HOUR}
"""Length of a bar of the plots, by the number of hours that they show."""

RECENT_PERIOD = timedelta(minutes=15)
"""The period shown as "now"; the current minute is added to it."""

PERCENTILES: Mapping[str, int] = {"p50": 50, "p95": 95, "p99": 99}

MAX_MERCHANTS = 50
"""Merchants in the table; the others are added up in one row."""

UNMATCHED_ROUTE = "unmatched route"


@dataclass(frozen=True, slots=True)
class Row:
    """A table row. ``href`` filters by it; ``ratio`` is its share of all requests."""

    name: str
    detail: str
    href: str
    traffic: RequestCounts
    ratio: float


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Latency of an operation in the whole period and recently."""

    name: str
    href: str
    total: RequestCounts
    recent: RequestCounts


@dataclass(frozen=True, slots=True)
class TrafficPlots:
    requests: Plot
    service: Plot
    gateway: Plot
    bar_size: timedelta


async def load_traffic_plots(
    store: Store, hours: int, filters: Mapping[str, str] | None = None
) -> tuple[TrafficPlots, RequestCounts]:
    """Loads the plots of the last hours and their total; raises StoreUnavailable."""
    bar_size, now = BAR_SIZE_BY_HOURS[hours], store.clock()
    since, until = _compute_period(now, hours)
    traffic_by_start = await load_request_counts(
        store, _find_span(hours), since, "began_at", required_values=filters, has_durations=True
    )
    starts = list_time_span_starts(since, until, bar_size)
    bars: list[RequestCounts] = [RequestCounts() for _ in starts]
    for (began_at,), traffic in traffic_by_start.items():
        # Requests counted since the period was computed belong to the last bar.
        bars[min(int((began_at - since) / bar_size), len(bars) - 1)].add(traffic)
    return _build_traffic_plots(starts, bars, bar_size), sum_request_counts(bars)


def _find_span(hours: int) -> timedelta:
    """Returns the length of the counted spans that the bars add up."""
    return HOUR if BAR_SIZE_BY_HOURS[hours] >= HOUR else MINUTE


def _compute_period(now: datetime, hours: int) -> tuple[datetime, datetime]:
    """Returns the period to plot: whole bars, the last of which contains now."""
    seconds = BAR_SIZE_BY_HOURS[hours].total_seconds()
    # Aligned to the clock, so that a bar does not change its span with every refresh.
    until = datetime.fromtimestamp(now.timestamp() // seconds * seconds + seconds, UTC)
    return until - timedelta(hours=hours), until


def _build_traffic_plots(
    starts: Sequence[datetime], bars: Sequence[RequestCounts], bar_size: timedelta
) -> TrafficPlots:
    labels = format_axis_time_labels(starts)
    names = [f"{start:%H:%M}\N{EN DASH}{start + bar_size:%H:%M}" for start in starts]
    counts = [
        {"answered": traffic.successful, "refused": traffic.refused, "failed": traffic.failed}
        for traffic in bars
    ]

    def build_percentile_plot(part: Part) -> Plot:
        percentiles = [_compute_duration_percentiles(traffic, part) for traffic in bars]
        rows = list(zip(names, percentiles, strict=True))
        return build_stacked_bar_plot(rows, labels, is_cumulative=True)

    return TrafficPlots(
        build_stacked_bar_plot(list(zip(names, counts, strict=True)), labels),
        build_percentile_plot("service"),
        build_percentile_plot("gateway"),
        bar_size,
    )


def _compute_duration_percentiles(traffic: RequestCounts, part: Part) -> dict[str, float]:
    """Returns percentiles, capped at the highest bucket bound: infinity cannot be drawn."""
    return {
        name: min(traffic.percentile(part, percent) or 0.0, BUCKET_BOUNDS_MS[-1])
        for name, percent in PERCENTILES.items()
    }


async def load_recent_traffic_by_operation(
    store: Store, filters: Mapping[str, str] | None = None
) -> dict[tuple[str], RequestCounts]:
    """Loads the last 15 minutes by operation; raises StoreUnavailable."""
    # Counts are stored by minute, so the first one may have begun before the period.
    since = store.clock() - RECENT_PERIOD - MINUTE
    return await load_request_counts(
        store, MINUTE, since, "operation", required_values=filters, has_durations=True
    )


class TrafficPage:
    def __init__(self, dependencies: ConsoleDependencies, pages: Pages) -> None:
        self._store = dependencies.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        hours, filters = _parse_period_and_filters(request.query)
        plots, total = await load_traffic_plots(self._store, hours, filters)
        since, _ = _compute_period(self._store.clock(), hours)
        span = _find_span(hours)
        by_operation = await load_request_counts(
            self._store, span, since, "operation", required_values=filters, has_durations=True
        )
        recent = await load_recent_traffic_by_operation(self._store, filters)
        by_merchant = await load_request_counts(
            self._store, span, since, "merchant", "environment", required_values=filters
        )
        return self._pages.render_page(
            request,
            "traffic",
            hours=hours,
            choices=[
                (choice, _build_traffic_url({**filters, "hours": choice}))
                for choice in BAR_SIZE_BY_HOURS
            ],
            only=filters,
            everything=_build_traffic_url({"hours": hours}),
            plots=plots,
            whole=total,
            operations=(operations := _build_operation_rows(by_operation, filters, hours, total)),
            times=_build_operation_times(operations, recent, total),
            merchants=_build_merchant_rows(by_merchant, filters, hours, total),
        )


def _parse_period_and_filters(query: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """Parses the query: period and filters. Unknown parameters are ignored."""
    hours = next((choice for choice in BAR_SIZE_BY_HOURS if str(choice) == query.get("hours")), 24)
    names = ("merchant", "environment", "operation")
    return hours, {name: query[name] for name in names if name in query}


def _build_traffic_url(query: Mapping[str, Any]) -> str:
    return f"/traffic?{urlencode(query)}"


def _build_operation_rows(
    traffic_by_operation: Mapping[tuple[Any, ...], RequestCounts],
    filters: Mapping[str, str],
    hours: int,
    total: RequestCounts,
) -> list[Row]:
    rows = [
        _build_traffic_row(
            name or UNMATCHED_ROUTE,
            "",
            {**filters, "operation": name, "hours": hours},
            traffic,
            total,
        )
        for (name,), traffic in traffic_by_operation.items()
    ]
    return sorted(rows, key=lambda row: -row.traffic.requests)


def _build_operation_times(
    rows: Sequence[Row], recent: Mapping[tuple[str], RequestCounts], total: RequestCounts
) -> list[OperationTimes]:
    recent_by_name = {name or UNMATCHED_ROUTE: traffic for (name,), traffic in recent.items()}
    times = [
        OperationTimes(
            row.name, row.href, row.traffic, recent_by_name.get(row.name, RequestCounts())
        )
        for row in rows
    ]
    # The sum of a single row would repeat it.
    if len(times) < 2:
        return times
    return [
        OperationTimes("all operations", "", total, sum_request_counts(recent_by_name.values())),
        *times,
    ]


def _build_merchant_rows(
    traffic_by_tenant: Mapping[tuple[Any, ...], RequestCounts],
    filters: Mapping[str, str],
    hours: int,
    total: RequestCounts,
) -> list[Row]:
    rows = [
        _build_traffic_row(
            merchant or "unauthenticated",
            environment,
            {**filters, "merchant": merchant, "environment": environment, "hours": hours},
            traffic,
            total,
        )
        for (merchant, environment), traffic in traffic_by_tenant.items()
    ]
    rows.sort(key=lambda row: -row.traffic.requests)
    if remaining_traffic := [row.traffic for row in rows[MAX_MERCHANTS:]]:
        rows[MAX_MERCHANTS:] = [
            _build_traffic_row(
                f"{len(remaining_traffic)} others",
                "",
                {},
                sum_request_counts(remaining_traffic),
                total,
            )
        ]
    return rows


def _build_traffic_row(
    name: str, detail: str, query: Mapping[str, Any], traffic: RequestCounts, total: RequestCounts
) -> Row:
    return Row(
        name,
        detail,
        _build_traffic_url(query) if query else "",
        traffic,
        traffic.requests / (total.requests or 1),
    )
