"""Percentiles of a histogram are close to those of the durations, also after merging."""

from __future__ import annotations

import itertools
import math
import random
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import Integer, bindparam, text

from gateway.config.settings import State
from gateway.storage import open_store
from gateway.storage.durations import (
    BUCKET_BOUNDS_MS,
    BUCKET_COUNT,
    PARTS,
    Durations,
    list_bucket_columns,
)
from gateway.storage.tables import UTCDateTime, traffic
from gateway.storage.traffic_rows import (
    Span,
    Traffic,
    add_traffic_counts,
    compute_traffic_span_start,
    load_traffic_count_sums,
)
from tests.gateway.storage.conftest import open_store_at_revision
from tests.state import execute


def build_durations(milliseconds: list[float]) -> Durations:
    durations = Durations()
    for ms in milliseconds:
        durations.count(ms)
    return durations


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("percent", [50, 95, 99])
def test_percentile_is_at_most_one_bucket_off(seed: int, percent: float) -> None:
    random_source = random.Random(seed)
    samples = sorted(random_source.lognormvariate(4, 1.2) for _ in range(3000))
    exact_percentile = samples[math.ceil(len(samples) * percent / 100) - 1]
    estimate = build_durations(samples).percentile(percent)
    assert estimate
    assert exact_percentile / 1.61 <= estimate <= exact_percentile * 1.61


def test_percentiles_are_monotonic() -> None:
    histogram = build_durations([random.Random(1).uniform(0, 50_000) for _ in range(500)])
    percentiles = [histogram.percentile(percent) or 0 for percent in range(1, 101)]
    assert percentiles == sorted(percentiles)


def test_merged_histograms_equal_one_histogram() -> None:
    random_source = random.Random(2)
    samples = [random_source.expovariate(1 / 80) for _ in range(900)]
    merged_histogram = Durations()
    for offset in range(3):
        merged_histogram.add(build_durations(samples[offset::3]))
    assert merged_histogram == build_durations(samples)
    assert merged_histogram.total == 900


def test_empty_histogram_has_no_percentile_and_overflow_is_reported() -> None:
    assert Durations().percentile(95) is None
    assert build_durations([10.0] * 9 + [BUCKET_BOUNDS_MS[-1] + 1]).percentile(99) == math.inf
    assert (build_durations([0.0]).percentile(50) or 0) <= BUCKET_BOUNDS_MS[0]


def test_each_bucket_grows_by_the_documented_factor() -> None:
    ratios = [
        upper_bound / lower_bound
        for lower_bound, upper_bound in itertools.pairwise(BUCKET_BOUNDS_MS)
    ]
    assert all(1.55 < ratio < 1.61 for ratio in ratios)
    names = [name for part in PARTS for name in list_bucket_columns(part)]
    assert len(names) == len(PARTS) * BUCKET_COUNT
    assert {*names} <= {column.name for column in traffic.c}


async def test_migrated_counts_remain_without_durations(state: State) -> None:
    began_at = compute_traffic_span_start(datetime(2030, 1, 1, tzinfo=UTC))
    async with open_store_at_revision(state, "0009") as store:
        old_row = {"began_at": began_at, "requests": 7, "service_ms": 90, "slowest_ms": 30}
        await execute(
            store,
            text(
                "INSERT INTO traffic (began_at, merchant, environment, operation, requests, refused,"
                " failed, ms, service_ms, slowest_ms) VALUES (:began_at, 'acme', 'live', 'x',"
                " :requests, 0, 0, 100, :service_ms, :slowest_ms)"
            )
            .bindparams(
                bindparam("began_at", type_=UTCDateTime),
                *(
                    bindparam(name, type_=Integer)
                    for name in ("requests", "service_ms", "slowest_ms")
                ),
            )
            .bindparams(**old_row),
        )
    traffic_counts = Traffic(1, service_ms=5)
    traffic_counts.service.count(5)
    async with open_store(state) as store:
        traffic_by_span = {Span(began_at, "acme", "live", "x"): traffic_counts}
        await store.write(partial(add_traffic_counts, traffic_by_span=traffic_by_span))
        traffic_sums = await load_traffic_count_sums(
            store, began_at, "operation", has_durations=True
        )
    total = traffic_sums[("x",)]
    assert (total.requests, total.service_ms, total.slowest_ms) == (8, 95, 30)
    assert (total.service, total.gateway.total) == (traffic_counts.service, 0)
