"""Percentiles of counted durations: near those of the durations themselves, whoever counted them."""

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
from gateway.storage.durations import BOUNDS, BUCKETS, PARTS, Durations, columns_of
from gateway.storage.tables import UTCDateTime, traffic
from gateway.storage.traffic_rows import Span, Traffic, add_traffic, span_of, traffic_by
from tests.gateway.store.conftest import at_revision
from tests.states import execute


def counted(those: list[float]) -> Durations:
    found = Durations()
    for ms in those:
        found.count(ms)
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("percent", [50, 95, 99])
def test_a_percentile_is_at_most_a_bucket_off(seed: int, percent: float) -> None:
    dice = random.Random(seed)
    those = sorted(dice.lognormvariate(4, 1.2) for _ in range(3000))
    exact = those[math.ceil(len(those) * percent / 100) - 1]
    found = counted(those).percentile(percent)
    assert found
    assert exact / 1.61 <= found <= exact * 1.61


def test_percentiles_never_fall() -> None:
    found = counted([random.Random(1).uniform(0, 50_000) for _ in range(500)])
    read = [found.percentile(percent) or 0 for percent in range(1, 101)]
    assert read == sorted(read)


def test_what_several_counted_is_what_one_would_have() -> None:
    dice = random.Random(2)
    those = [dice.expovariate(1 / 80) for _ in range(900)]
    added = Durations()
    for at in range(3):
        added.add(counted(those[at::3]))
    assert added == counted(those)
    assert added.total == 900


def test_nothing_counted_is_told_as_nothing_and_beyond_the_scale_as_that() -> None:
    assert Durations().percentile(95) is None
    assert counted([10.0] * 9 + [BOUNDS[-1] + 1]).percentile(99) == math.inf
    assert (counted([0.0]).percentile(50) or 0) <= BOUNDS[0]


def test_each_bucket_is_as_much_wider_as_is_said() -> None:
    ratios = [upper / lower for lower, upper in itertools.pairwise(BOUNDS)]
    assert all(1.55 < one < 1.61 for one in ratios)
    names = [name for part in PARTS for name in columns_of(part)]
    assert len(names) == len(PARTS) * BUCKETS
    assert {*names} <= {column.name for column in traffic.c}


async def test_what_the_version_before_counted_stays_and_has_no_durations(state: State) -> None:
    began_at = span_of(datetime(2030, 1, 1, tzinfo=UTC))
    async with at_revision(state, "0009") as store:
        row = {"began_at": began_at, "requests": 7, "service_ms": 90, "slowest_ms": 30}
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
            .bindparams(**row),
        )
    its = Traffic(1, service_ms=5)
    its.service.count(5)
    async with open_store(state) as store:
        carried = {Span(began_at, "acme", "live", "x"): its}
        await store.write(partial(add_traffic, carried=carried))
        found = await traffic_by(store, began_at, "operation", durations=True)
    whole = found[("x",)]
    assert (whole.requests, whole.service_ms, whole.slowest_ms) == (8, 95, 30)
    assert (whole.service, whole.gateway.total) == (its.service, 0)
