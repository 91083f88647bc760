"""The overview page: alerts, key figures and the last hour."""

from datetime import timedelta

from aiohttp import web

from gateway.auth.key_rows import load_active_key_names
from gateway.console.alerts import format_check_name, load_alerts
from gateway.console.pages import Pages
from gateway.console.traffic import (
    DEFAULT_HOURS,
    find_last_failure,
    load_recent_traffic,
    load_traffic_chart,
)
from gateway.operator.state_gauges import load_state_gauges
from gateway.storage.request_counts import (
    HOUR,
    compute_span_start,
    load_request_counts,
    load_usage,
    sum_request_counts,
)

FIGURES_PERIOD = timedelta(hours=24)


async def show_overview(pages: Pages, request: web.Request) -> web.StreamResponse:
    store = pages.store
    faults = await pages.health.find_problems()
    limited = [use for use in await pages.dependencies.load_limit_usage() if use.level != "ok"]
    gauges = await load_state_gauges(store)
    chart, _ = await load_traffic_chart(store, DEFAULT_HOURS)
    since = compute_span_start(store.clock() - FIGURES_PERIOD, HOUR)
    # In this order: the day shows at least what the last minutes do.
    recent_by_merchant = await load_recent_traffic(store)
    day = await load_request_counts(store, HOUR, since, has_durations=True)
    # Together with today, seven days.
    week = await load_usage(store, (store.clock() - timedelta(days=6)).date())
    active = await load_active_key_names(store)
    return pages.render_page(
        request,
        "overview",
        faults={format_check_name(name): fault for name, fault in faults.items()},
        matters=await load_alerts(
            pages.dependencies,
            faults,
            gauges,
            recent_by_merchant,
            limited,
            last_failure_at=await find_last_failure(store),
        ),
        chart=chart,
        day=sum_request_counts(day.values()),
        recent=sum_request_counts(recent_by_merchant.values()),
        figures=gauges,
        near=len(limited),
        # Neither requests without a known key nor those of revoked keys are left.
        left=sum(usage.key in active for usage in week),
        keys=sum(gauges.keys.values()),
        sunset=pages.dependencies.settings.deprecation.sunset_date,
    )
