"""The overview page: alerts, key figures, large requests and the last 24 hours."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from datetime import timedelta

from aiohttp import web

from gateway.admin.port import run_check
from gateway.console.alerts import load_alerts
from gateway.console.dependencies import Parts
from gateway.console.limits import load_limit_usage
from gateway.console.migration import Progress, compute_migration_progress
from gateway.console.pages import Pages
from gateway.console.traffic import load_recent_traffic, load_traffic_plots
from gateway.http.progress import Seen
from gateway.operator.key_usage import group_usage_by_key
from gateway.operator.metrics_page import load_gauges
from gateway.storage.traffic_rows import summed
from gateway.storage.usage_rows import used_since

CHECKED_SECONDS = 10.0
"""Checks are cached this long, however many clients refresh the page."""

HOURS = 24
WEEK = timedelta(days=6)
"""Together with today, seven days."""


STEPS: Mapping[str, tuple[str, str]] = {
    "receiving_request": ("receiving body", "body received"),
    "translating_request": ("translating body",) * 2,
    "calling_service": ("sending to the service", "waiting for the service"),
    "receiving_response": ("receiving the service's response", "translating the response"),
    "sending_response": ("sending the response",) * 2,
}
"""Label of each step of a large request: during the transfer, and after its last byte."""


class OverviewPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._parts = parts
        self._pages = pages
        self._faults: dict[str, str | None] = {}
        self._near = 0
        self._checked_at = -math.inf
        self._checking = asyncio.Lock()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        store = self._parts.store
        faults = await self._checks()
        found = await load_gauges(store)
        plots, day = await load_traffic_plots(store, HOURS)
        recent = summed((await load_recent_traffic(store)).values())
        week = group_usage_by_key(await used_since(store, (store.clock() - WEEK).date()))
        return self._pages.page(
            request,
            "overview",
            faults=faults,
            matters=await load_alerts(self._parts, faults, found, recent, self._near),
            plots=plots,
            day=day,
            recent=recent,
            figures=found,
            near=self._near,
            left=sum(bool(one.key) for one in week),
            keys=sum(found.keys.values()),
            progress=self._progress(),
            large=await self._large(),
            steps=STEPS,
        )

    async def _checks(self) -> dict[str, str | None]:
        async with self._checking:
            if (now := asyncio.get_running_loop().time()) - self._checked_at >= CHECKED_SECONDS:
                checks = self._parts.checks
                said = await asyncio.gather(*(run_check(one) for one in checks.values()))
                self._faults = dict(zip(checks, said, strict=True))
                self._near = sum(one.level != "ok" for one in await load_limit_usage(self._parts))
                self._checked_at = now
            return self._faults

    async def _large(self) -> list[Seen]:
        """The large requests of all workers, the longest running first."""
        elsewhere = await self._parts.instances.large_elsewhere()
        those = [*self._parts.under_way.those(), *elsewhere]
        return sorted(those, key=lambda one: one.began_at)

    def _progress(self) -> Progress:
        deprecation = self._parts.settings.deprecation
        today = self._parts.store.clock().date()
        return compute_migration_progress(deprecation.announced, deprecation.sunset_date, today)
