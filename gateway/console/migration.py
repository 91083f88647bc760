"""The migration page: legacy usage by key, and time left until the sunset date."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from aiohttp import web

from gateway.auth.key_rows import load_listed_keys
from gateway.config.sections import Deprecation
from gateway.console.pages import Page
from gateway.operator.usage import map_operations_to_replacement_calls
from gateway.storage.request_counts import load_usage

PERIOD_DAYS = 60
RECENT_PERIOD = timedelta(days=7)
SIGNED_OPERATION = "signed"

MAX_KEYS = 200
"""Keys on the page; `report usage` lists all."""


@dataclass(frozen=True, slots=True)
class SunsetProgress:
    """Time until the sunset. The dates are None if none is announced; ``elapsed`` is from 0 to 1."""

    announced: date | None
    sunset: date | None
    days_left: int
    elapsed: float


def compute_sunset_progress(deprecation: Deprecation, today: date) -> SunsetProgress:
    announced, sunset = deprecation.announced, deprecation.sunset_date
    if announced is None or sunset is None:
        return SunsetProgress(announced, sunset, 0, 0.0)
    # 1 if both are on the same day, to avoid a division by zero.
    total_days = (sunset - announced).days or 1
    elapsed = min(max((today - announced).days / total_days, 0.0), 1.0)
    return SunsetProgress(announced, sunset, (sunset - today).days, elapsed)


class MigrationPage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        store, now = self._store, self._store.clock()
        today = now.date()
        since = today - timedelta(days=PERIOD_DAYS - 1)
        keys = await load_usage(store, since)
        left = [usage for usage in keys if usage.key]
        signed = [usage for usage in keys if not usage.key and SIGNED_OPERATION in usage.operations]
        recent_since = now - RECENT_PERIOD
        recent = sum(usage.last_at > recent_since for usage in left)
        # Keys that are still in use come first.
        left.sort(key=lambda usage: (usage.last_at <= recent_since, -usage.requests))
        active = sum(key.revoked_at is None for key in await load_listed_keys(store))
        deprecation = self._dependencies.settings.deprecation
        return self._pages.render_page(
            request,
            "migration",
            days=PERIOD_DAYS,
            recent_days=RECENT_PERIOD.days,
            progress=compute_sunset_progress(deprecation, today),
            refuses=deprecation.after_sunset == "refuse",
            left=left[:MAX_KEYS],
            more=len(left) - MAX_KEYS,
            quiet=len(left) - recent,
            recent=recent,
            recent_since=recent_since,
            keys=active,
            signed=sorted(signed, key=lambda usage: -usage.requests),
            # Requests without a known key are counted without a merchant.
            unknown=next((usage for usage in keys if not usage.tenant.merchant), None),
            becomes=map_operations_to_replacement_calls(),
        )
