"""The traffic page: requests, errors and latency by operation and merchant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.console.charts import Plot, build_plot, list_span_starts, select_axis_labels
from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.storage import Store
from gateway.storage.durations import BOUNDS, PARTS, Part
from gateway.storage.traffic_rows import SPAN, Traffic, summed, traffic_by
from mappings import OPERATIONS, UNLISTED

HOURS = (1, 6, 24, 48)

PER_BAR: Mapping[int, timedelta] = {
    1: SPAN,
    6: SPAN,
    24: 3 * SPAN,
    48: 6 * SPAN,
}

JUST_NOW = timedelta(minutes=15)
"""The period shown as "now"; the current span is added to it."""

PERCENTILES: Mapping[str, int] = {"p50": 50, "p95": 95, "p99": 99}

MOST = 50
"""Merchants in the table; the others are added up in one row."""

NO_OPERATION = "unmatched route"
SIGNED = "signed"

KNOWN = frozenset(one.name for one in (*OPERATIONS, *UNLISTED)) | {SIGNED, ""}


@dataclass(frozen=True, slots=True)
class Row:
    """A table row. ``href`` filters by it; ``ratio`` is its share of all requests."""

    name: str
    fine: str
    href: str
    its: Traffic
    part: float


@dataclass(frozen=True, slots=True)
class Times:
    """Latency of an operation in the whole period and recently."""

    name: str
    href: str
    whole: Traffic
    now: Traffic


@dataclass(frozen=True, slots=True)
class Plots:
    requests: Plot
    service: Plot
    gateway: Plot
    size: timedelta


async def load_traffic_plots(
    store: Store, hours: int, only: Mapping[str, str] | None = None
) -> tuple[Plots, Traffic]:
    """Loads the plots of the last hours and their total; raises StoreUnavailable."""
    size, now = PER_BAR[hours], store.clock()
    since, until = _reach(now, hours)
    found = await traffic_by(store, since, "began_at", only=only, durations=True)
    moments = list_span_starts(since, until, size)
    bars: list[Traffic] = [Traffic() for _ in moments]
    for (began_at,), its in found.items():
        bars[min(int((began_at - since) / size), len(bars) - 1)].add(its)
    return _plots(moments, bars, size), summed(bars)


def _reach(now: datetime, hours: int) -> tuple[datetime, datetime]:
    """The period to plot: whole bars, the last of which contains now."""
    seconds = PER_BAR[hours].total_seconds()
    until = datetime.fromtimestamp(now.timestamp() // seconds * seconds + seconds, UTC)
    return until - timedelta(hours=hours), until


def _plots(moments: Sequence[datetime], bars: Sequence[Traffic], size: timedelta) -> Plots:
    labels = select_axis_labels(moments)
    names = [f"{one:%H:%M}\N{EN DASH}{one + size:%H:%M}" for one in moments]
    counts = [
        {"answered": one.answered, "refused": one.refused, "failed": one.failed} for one in bars
    ]
    of_parts = [
        build_plot(
            list(zip(names, [_percentiles(one, part) for one in bars], strict=True)),
            labels,
            within=True,
        )
        for part in PARTS
    ]
    gateway, service = of_parts
    return Plots(build_plot(list(zip(names, counts, strict=True)), labels), service, gateway, size)


def _percentiles(its: Traffic, part: Part) -> dict[str, float]:
    """Percentiles for a plot, capped at the highest bucket bound: infinity cannot be drawn."""
    return {
        name: min(its.percentile(part, percent) or 0.0, BOUNDS[-1])
        for name, percent in PERCENTILES.items()
    }


async def load_recent_traffic(
    store: Store, only: Mapping[str, str] | None = None
) -> dict[tuple[str], Traffic]:
    """Loads the last 15 minutes by operation; raises StoreUnavailable."""
    since = store.clock() - JUST_NOW - SPAN
    return await traffic_by(store, since, "operation", only=only, durations=True)


class TrafficPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._store = parts.store
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        hours, only = _asked(request.query)
        plots, whole = await load_traffic_plots(self._store, hours, only)
        since, _ = _reach(self._store.clock(), hours)
        by_operation = await traffic_by(self._store, since, "operation", only=only, durations=True)
        now = await load_recent_traffic(self._store, only)
        by_merchant = await traffic_by(self._store, since, "merchant", "environment", only=only)
        return self._pages.page(
            request,
            "traffic",
            hours=hours,
            choices=[(one, _href({**only, "hours": one})) for one in HOURS],
            only=only,
            everything=_href({"hours": hours}),
            plots=plots,
            whole=whole,
            operations=(operations := _operations(by_operation, only, hours, whole)),
            times=_times(operations, now, whole),
            merchants=_merchants(by_merchant, only, hours, whole),
        )


def _asked(query: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """Parses the query: period and filters. Unknown parameters are ignored."""
    hours = next((one for one in HOURS if str(one) == query.get("hours")), 24)
    names = ("merchant", "environment", "operation")
    return hours, {name: query[name] for name in names if name in query}


def _href(asked: Mapping[str, Any]) -> str:
    return f"/traffic?{urlencode(asked)}"


def _operations(
    found: Mapping[tuple[Any, ...], Traffic], only: Mapping[str, str], hours: int, whole: Traffic
) -> list[Row]:
    rows = [
        _row(name or NO_OPERATION, "", {**only, "operation": name, "hours": hours}, its, whole)
        for (name,), its in found.items()
    ]
    return sorted(rows, key=lambda one: -one.its.requests)


def _times(rows: Sequence[Row], now: Mapping[tuple[str], Traffic], whole: Traffic) -> list[Times]:
    found = {name or NO_OPERATION: its for (name,), its in now.items()}
    of_each = [Times(one.name, one.href, one.its, found.get(one.name, Traffic())) for one in rows]
    if len(of_each) < 2:
        return of_each
    return [Times("all operations", "", whole, summed(found.values())), *of_each]


def _merchants(
    found: Mapping[tuple[Any, ...], Traffic], only: Mapping[str, str], hours: int, whole: Traffic
) -> list[Row]:
    rows = [
        _row(
            merchant or "unauthenticated",
            environment,
            {**only, "merchant": merchant, "environment": environment, "hours": hours},
            its,
            whole,
        )
        for (merchant, environment), its in found.items()
    ]
    rows.sort(key=lambda one: -one.its.requests)
    if rest := [one.its for one in rows[MOST:]]:
        rows[MOST:] = [_row(f"{len(rest)} others", "", {}, summed(rest), whole)]
    return rows


def _row(name: str, fine: str, asked: Mapping[str, Any], its: Traffic, whole: Traffic) -> Row:
    return Row(name, fine, _href(asked) if asked else "", its, its.requests / (whole.requests or 1))
