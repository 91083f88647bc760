"""The migration page: legacy usage by key, and time left until the sunset date."""

from datetime import timedelta

from aiohttp import web

from gateway.auth.key_rows import load_active_key_names
from gateway.console.pages import Pages
from gateway.observability.metrics import SIGNED_OPERATION
from gateway.operator.interruptions import USAGE_PERIOD
from gateway.operator.usage import map_operations_to_replacement_calls
from gateway.storage.request_counts import load_usage

PERIOD_DAYS = 60

MAX_KEYS = 200
"""Keys on the page; `report usage` lists all."""


async def show_migration(pages: Pages, request: web.Request) -> web.StreamResponse:
    store, now = pages.store, pages.store.clock()
    today = now.date()
    since = today - timedelta(days=PERIOD_DAYS - 1)
    keys = await load_usage(store, since)
    left = [usage for usage in keys if usage.key]
    signed = [usage for usage in keys if not usage.key and SIGNED_OPERATION in usage.operations]
    recent_since = now - USAGE_PERIOD
    # The clients of revoked keys are not left to migrate.
    active = await load_active_key_names(store)
    used = [usage for usage in left if usage.key in active]
    recent = sum(usage.last_at > recent_since for usage in used)
    # Keys that are still in use come first.
    left.sort(
        key=lambda usage: (
            usage.key not in active,
            usage.last_at <= recent_since,
            -usage.requests,
        )
    )
    deprecation = pages.dependencies.settings.deprecation
    return pages.render_page(
        request,
        "migration",
        days=PERIOD_DAYS,
        recent_days=USAGE_PERIOD.days,
        announced=deprecation.announced,
        sunset=deprecation.sunset_date,
        refuses=deprecation.after_sunset == "refuse",
        left=left[:MAX_KEYS],
        more=len(left) - MAX_KEYS,
        quiet=len(used) - recent,
        recent=recent,
        recent_since=recent_since,
        active=active,
        signed=sorted(signed, key=lambda usage: -usage.requests),
        # Requests without a known key are counted without a merchant.
        unknown=next((usage for usage in keys if not usage.tenant.merchant), None),
        becomes=map_operations_to_replacement_calls(),
    )
