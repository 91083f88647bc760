import pytest
from structlog.testing import capture_logs

from gateway.upstream.clock import ServiceClock, SkewSample, measure_skew

DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
TIMESTAMP = 1_700_000_000.0


def build_sample(offset: float, uncertainty: float = 0.6) -> SkewSample:
    return SkewSample(offset, uncertainty)


def test_skew_uncertainty_is_half_the_round_trip_plus_half_a_second():
    assert measure_skew({"Date": DATE}, TIMESTAMP - 300.0, 4.0) == SkewSample(302.5, 2.5)
    assert measure_skew({"Date": DATE}, TIMESTAMP + 0.5, 0.0) == SkewSample(0.0, 0.5)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Date": ""}, {"Date": "now"}, {"Date": "0"}, {"Date": DATE, "Age": "7"}],
)
def test_cached_or_invalid_date_gives_no_skew(headers: dict[str, str]):
    assert measure_skew(headers, TIMESTAMP, 0.1) is None


@pytest.mark.parametrize("date", ["Tue, 14 Nov 2023 22:13:20 -0000", "Tue Nov 14 22:13:20 2023"])
def test_other_date_formats_are_read_as_utc(date: str):
    assert measure_skew({"Date": date}, TIMESTAMP, 0.0) == SkewSample(0.5, 0.5)


@pytest.mark.parametrize(
    "skew_sample", [build_sample(1.9), build_sample(-2.0), build_sample(9.0, 9.5)]
)
def test_small_or_uncertain_offset_is_ignored(skew_sample: SkewSample):
    clock = ServiceClock()
    clock.record_accepted("live", skew_sample)
    clock.record_accepted("live", skew_sample)
    assert clock.offset("live") == 0
    assert clock.select_retry_correction("live", skew_sample, 0.0) is None


def test_single_outlier_changes_nothing_and_two_agreeing_dates_do():
    clock = ServiceClock()
    for offset in (25, 0, 25, 10, 25, 0):
        clock.record_accepted("live", build_sample(offset))
        assert clock.offset("live") == 0
    with capture_logs() as logs:
        clock.record_accepted("live", build_sample(25))
        clock.record_accepted("live", build_sample(26))
        clock.record_accepted("live", build_sample(25))
    assert clock.offset("live") == 26
    assert clock.offset("sandbox") == 0
    assert [entry["offset_seconds"] for entry in logs] == [26]


@pytest.mark.parametrize("offset", [32, -32, 3600])
def test_implausible_time_is_not_that_of_the_service(offset: float):
    clock = ServiceClock()
    for _ in range(3):
        clock.record_accepted("live", build_sample(offset))
    assert clock.offset("live") == 0
    for _ in range(2):
        clock.record_accepted("live", build_sample(offset), stamp_offset=offset / 2)
    assert clock.offset("live") == (offset if abs(offset) < 60 else 0)


def test_refused_call_is_retried_immediately_at_indicated_time():
    clock = ServiceClock()
    assert clock.select_retry_correction("live", build_sample(300), 0.0) == 300
    assert clock.offset("live") == 0  # not before it is known to help
    clock.record_proven_correction("live", 300)
    assert clock.offset("live") == 300
    assert clock.select_retry_correction("live", build_sample(300), 300.0) is None


def test_refused_call_signed_before_correction_is_retried():
    clock = ServiceClock()
    clock.record_proven_correction("live", 300)
    assert clock.select_retry_correction("live", build_sample(300), 0.0) == 300


def test_unproven_correction_is_dropped_after_refusal():
    clock = ServiceClock()
    clock.record_accepted("live", build_sample(25))
    clock.record_accepted("live", build_sample(25))
    assert clock.select_retry_correction("live", build_sample(25), 25.0) == 0
    clock.record_proven_correction("live", 0)
    for _ in range(3):
        clock.record_accepted("live", build_sample(300))
    assert clock.offset("live") == 0


def test_proven_correction_follows_clock_drift():
    clock = ServiceClock()
    clock.record_proven_correction("live", 300)
    clock.record_accepted("live", build_sample(310))
    clock.record_accepted("live", build_sample(310))
    assert clock.offset("live") == 310
    assert clock.select_retry_correction("live", build_sample(0), 310.0) == 0
    with capture_logs() as logs:
        clock.record_proven_correction("live", 0)
    assert clock.offset("live") == 0
    assert [entry["offset_seconds"] for entry in logs] == [0]
