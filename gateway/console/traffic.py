"""The traffic page: requests, errors and latency by operation and merchant."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from gateway.console.pages import Pages, build_requests_url
from gateway.observability.recent_requests import UNAUTHENTICATED, UNMATCHED_ROUTE
from gateway.storage import Store
from gateway.storage.request_counts import (
    HOUR,
    MINUTE,
    RequestCounts,
    compute_span_start,
    load_request_counts,
    sum_request_counts,
)

MAX_LABELS = 6

AXIS_STEPS = (1, 2, 4, 6, 8, 10)
"""Upper ends of an axis from 2 on; half of each is a whole number too."""


class BarChart(NamedTuple):
    """A chart of at least one bar: its label and counts. ``labels`` are evenly spaced below."""

    title: str
    bars: Sequence[tuple[str, RequestCounts]]
    labels: Sequence[str]
    top: float
    """The upper end of the axis."""


def round_up_axis(value: float) -> float:
    """Rounds up to a short number, at least 2."""
    value = max(value, 2)
    power = 10.0 ** math.floor(math.log10(value))
    # The tolerance is for rounding errors.
    return next(step * power for step in AXIS_STEPS if value <= step * power * (1 + 1e-9))


DEFAULT_HOURS = 1
BAR_SIZE_BY_HOURS: Mapping[int, timedelta] = {1: MINUTE, 6: 5 * MINUTE, 24: HOUR, 48: HOUR}
"""Length of a bar of the plots, by the number of hours that they show."""

RECENT_PERIOD = timedelta(minutes=15)
"""The period shown as "now"; the current minute is added to it."""

FILTERS = ("merchant", "environment", "operation")

MAX_ROWS = 50
"""Rows of the table; the others are added up in one."""

Row = tuple[str, str, str, str, RequestCounts]

GROUPINGS: Mapping[str, tuple[str, ...]] = {
    "operation": ("operation",),
    "merchant": ("merchant", "environment"),
}
"""Columns of the database by which the table can be grouped."""


async def load_traffic_chart(
    store: Store, hours: int, filters: Mapping[str, str] | None = None
) -> tuple[BarChart, RequestCounts]:
    """Loads the chart of the last hours and their total; raises StoreUnavailable."""
    bar_size, now = BAR_SIZE_BY_HOURS[hours], store.clock()
    since = _compute_period_start(now, hours)
    traffic_by_start = await load_request_counts(
        store, _find_span(hours), since, "began_at", required_values=filters, has_durations=True
    )
    starts = [since + number * bar_size for number in range(timedelta(hours=hours) // bar_size)]
    counts = [RequestCounts() for _ in starts]
    for (began_at,), traffic in traffic_by_start.items():
        # Requests counted since the period was computed belong to the last bar.
        counts[min(int((began_at - since) / bar_size), len(counts) - 1)].add(traffic)
    names = [f"{start:%H:%M}\N{EN DASH}{start + bar_size:%H:%M}" for start in starts]
    # A few of the times, evenly spaced from the first.
    labels = [f"{start:%H:%M}" for start in starts[:: math.ceil(len(starts) / MAX_LABELS)]]
    chart = BarChart(
        f"Requests per {bar_size // MINUTE} min",
        [*zip(names, counts, strict=True)],
        labels,
        round_up_axis(max(each.requests for each in counts)),
    )
    return chart, sum_request_counts(counts)


def _find_span(hours: int) -> timedelta:
    """Returns the length of the counted spans that the bars add up."""
    return HOUR if BAR_SIZE_BY_HOURS[hours] >= HOUR else MINUTE


def _compute_period_start(now: datetime, hours: int) -> datetime:
    """Returns the start of the period to plot: whole bars, the last of which contains now."""
    bar_size = BAR_SIZE_BY_HOURS[hours]
    # Aligned to the clock, so that a bar does not change its span with every refresh.
    return compute_span_start(now, bar_size) + bar_size - timedelta(hours=hours)


async def load_recent_traffic(store: Store) -> dict[str, RequestCounts]:
    """Loads the last 15 minutes by merchant ("" for requests without a known key).

    Raises StoreUnavailable.
    """
    # Counts are stored by minute, so the first one may have begun before the period.
    since = store.clock() - RECENT_PERIOD - MINUTE
    counts = await load_request_counts(store, MINUTE, since, "merchant", has_durations=True)
    return {merchant: count for (merchant,), count in counts.items()}


async def find_last_failure(store: Store) -> datetime | None:
    """Finds the minute of the last failure; None if failures may still happen.

    That is the case until a minute has passed without one, and with other requests. Raises
    StoreUnavailable.
    """
    now = store.clock()
    minutes = await load_request_counts(store, MINUTE, now - RECENT_PERIOD - MINUTE, "began_at")
    failed_at = max((minute for (minute,), counts in minutes.items() if counts.failed), default=now)
    has_requests_since = any(minute > failed_at for (minute,) in minutes)
    return failed_at if has_requests_since and now - failed_at >= 2 * MINUTE else None


async def show_traffic(pages: Pages, request: web.Request) -> web.StreamResponse:
    view = _parse_view(request.query)
    hours = int(view["hours"])
    filters = {name: view[name] for name in FILTERS if name in view}
    chart, total = await load_traffic_chart(pages.store, hours, filters)
    since = _compute_period_start(pages.store.clock(), hours)
    counts = await load_request_counts(
        pages.store,
        _find_span(hours),
        since,
        *GROUPINGS[view["by"]],
        required_values=filters,
        has_durations=True,
    )
    return pages.render_page(
        request,
        "traffic",
        view=view,
        hour_choices=[(f"{hours} h", view | {"hours": str(hours)}) for hours in BAR_SIZE_BY_HOURS],
        groupings=[(f"by {name}", view | {"by": name}) for name in GROUPINGS],
        filters=filters,
        everything={name: view[name] for name in view if name not in FILTERS},
        chart=chart,
        total=total,
        rows=_build_rows(counts, view),
    )


def _parse_view(query: Mapping[str, str]) -> dict[str, str]:
    """Parses the query: period, grouping and filters. Unknown parameters are ignored."""
    hours = [str(choice) for choice in BAR_SIZE_BY_HOURS]
    view = {
        "hours": query["hours"] if query.get("hours") in hours else str(DEFAULT_HOURS),
        "by": query["by"] if query.get("by") in GROUPINGS else "operation",
    }
    return view | {name: query[name] for name in FILTERS if name in query}


def _build_rows(
    counts: Mapping[tuple[Any, ...], RequestCounts], view: Mapping[str, str]
) -> list[Row]:
    """Returns each row's name, detail, traffic page, newest requests and figures, the most first."""
    rows = [_build_row(values, traffic, view) for values, traffic in counts.items()]
    rows.sort(key=lambda row: row[-1].requests, reverse=True)
    if others := [row[-1] for row in rows[MAX_ROWS:]]:
        rows[MAX_ROWS:] = [(f"{len(others)} others", "", "", "", sum_request_counts(others))]
    return rows


def _build_row(values: tuple[str, ...], traffic: RequestCounts, view: Mapping[str, str]) -> Row:
    columns = dict(zip(GROUPINGS[view["by"]], values, strict=True))
    # A row leads to the same figures by the other grouping.
    by = "merchant" if view["by"] == "operation" else "operation"
    shown = {name: view[name] for name in FILTERS if name in view} | columns
    labels = {"operation": UNMATCHED_ROUTE, "merchant": UNAUTHENTICATED}
    return (
        values[0] or labels[view["by"]],
        columns.get("environment", ""),
        f"/traffic?{urlencode({**view, **columns, 'by': by})}",
        build_requests_url(
            **{name: value or labels.get(name, "") for name, value in shown.items()}
        ),
        traffic,
    )
