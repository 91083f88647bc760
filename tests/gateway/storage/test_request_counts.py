"""Counts of requests: percentiles, spans, retention, and the counts of earlier versions."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from gateway.config.settings import State
from gateway.storage import open_store
from gateway.storage.request_counts import (
    BUCKET_BOUNDS_MS,
    DAY,
    HOUR,
    MINUTE,
    RETENTION,
    CountKey,
    RequestCounts,
    add_request_counts,
    compute_span_start,
    delete_old_request_counts,
    delete_old_usage,
    load_request_counts,
    load_usage,
)
from tests.gateway.storage.conftest import open_store_at_revision
from tests.state import execute


def build_counts(milliseconds: list[float]) -> RequestCounts:
    counts = RequestCounts(len(milliseconds), slowest_ms=10**6)
    for ms in milliseconds:
        counts.gateway[bisect_left(BUCKET_BOUNDS_MS, ms)] += 1
    return counts


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_percentile_is_at_most_one_bucket_off(percent: float) -> None:
    random_source = random.Random(percent)
    samples = sorted(random_source.lognormvariate(4, 1.2) for _ in range(3000))
    exact_percentile = samples[math.ceil(len(samples) * percent / 100) - 1]
    # Added up from parts, as the database does.
    counts = build_counts(samples[::2])
    counts.add(build_counts(samples[1::2]))
    estimate = counts.percentile("gateway", percent)
    assert estimate
    assert exact_percentile / 1.61 <= estimate <= exact_percentile * 1.61
    percentiles = [counts.percentile("gateway", step) or 0 for step in range(1, 101)]
    assert percentiles == sorted(percentiles)


def test_percentile_is_at_most_the_slowest_request() -> None:
    counts = build_counts([10.0] * 9 + [BUCKET_BOUNDS_MS[-1] + 1])
    assert counts.percentile("gateway", 99) == 10**6
    assert counts.percentile("service", 95) is None


async def test_one_request_counts_in_its_minute_hour_and_day(state: State) -> None:
    async with open_store(state) as store:
        now = compute_span_start(store.clock(), DAY) + timedelta(hours=3, minutes=59)
        for minutes, key in ((0, "k1"), (0, "k2"), (1, "k1")):
            moment = now + timedelta(minutes=minutes)
            counts = RequestCounts(3, 1, 1, 12, moment, moment)
            await add_request_counts(
                store, {CountKey(moment, MINUTE, "a", "live", key, "x"): counts}
            )
        for span, requests in ((MINUTE, [6, 3]), (HOUR, [6, 3]), (DAY, [9])):
            counted = await load_request_counts(store, span, None, "began_at", "operation")
            assert [row.requests for row in counted.values()] == requests
            assert min(counted) == (compute_span_start(now, span), "x")
        filtered = await load_request_counts(
            store, DAY, None, required_values={"merchant": "b"}, has_durations=True
        )
        assert filtered[()].requests == 0
        usage = {row.key: row.operations["x"] for row in await load_usage(store, now.date())}
        assert (usage["k1"].requests, usage["k1"].error_rate) == (6, 0.6667)
        assert (usage["k1"].first_at, usage["k1"].last_at) == (now, now + MINUTE)
        assert await load_usage(store, (now + DAY).date()) == []


async def test_minutes_and_hours_expire_and_days_as_configured(state: State) -> None:
    async with open_store(state) as store:
        now = store.clock()
        for age in (timedelta(), RETENTION[MINUTE] + MINUTE, RETENTION[HOUR] + HOUR):
            counts = RequestCounts(1, first_at=now, last_at=now)
            await add_request_counts(
                store, {CountKey(now - age, MINUTE, "a", "live", "k", "x"): counts}
            )
        await delete_old_request_counts(store)
        for span, requests in ((MINUTE, 1), (HOUR, 2), (DAY, 3)):
            assert (await load_request_counts(store, span, None))[()].requests == requests
        await store.write(lambda tx: delete_old_usage(tx, now - DAY))
        assert (await load_request_counts(store, HOUR, None))[()].requests == 2
        assert (await load_request_counts(store, DAY, None))[()].requests == 2


async def test_counts_of_the_previous_version_remain(state: State) -> None:
    day = datetime(2030, 1, 1, tzinfo=UTC)
    moment = "TIMESTAMPTZ '2030-01-01 10:{minute}:00+00'"
    if state.url.startswith("sqlite"):
        moment = "'2030-01-01 10:{minute}:00.000000'"
    columns = "merchant, environment, operation, requests, refused, failed, ms, service_ms"
    async with open_store_at_revision(state, "0020") as store:
        for minute in ("05", "10"):
            await execute(
                store,
                text(
                    f"INSERT INTO traffic (began_at, {columns}, slowest_ms, service_03) VALUES "
                    f"({moment.format(minute=minute)}, 'acme', 'live', 'x', 7, 0, 0, 100, 90, 30, 7)"
                ),
            )
        await execute(
            store,
            text(
                f"INSERT INTO usage (day, {columns}, key, first_at, last_at) VALUES ('2030-01-01', "
                "'acme', 'live', 'x', 14, 2, 0, 200, 180, 'payroll', "
                f"{moment.format(minute='06')}, {moment.format(minute='11')})"
            ),
        )
    async with open_store(state) as store:
        (usage,) = await load_usage(store, day.date())
        counts = await load_request_counts(store, HOUR, day, "began_at", has_durations=True)
        assert (await load_request_counts(store, MINUTE, day))[()].requests == 14
    summary = usage.operations["x"]
    assert (usage.key, summary.requests, summary.refused) == ("payroll", 14, 2)
    assert summary.first_at == day + timedelta(hours=10, minutes=6)
    assert list(counts) == [(day + timedelta(hours=10),)]
    (hour,) = counts.values()
    assert (hour.requests, hour.slowest_ms, hour.service[3]) == (14, 30, 14)
