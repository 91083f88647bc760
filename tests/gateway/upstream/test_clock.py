import pytest
from structlog.testing import capture_logs

from gateway.upstream.clock import ServiceClock, SkewSample, measure_skew

DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
STAMP = 1_700_000_000.0


def seen(offset: float, uncertainty: float = 0.6) -> SkewSample:
    return SkewSample(offset, uncertainty)


def test_an_answer_tells_the_time_to_half_the_round_trip_and_half_a_second():
    assert measure_skew({"Date": DATE}, STAMP - 300.0, 4.0) == SkewSample(302.5, 2.5)
    assert measure_skew({"Date": DATE}, STAMP + 0.5, 0.0) == SkewSample(0.0, 0.5)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Date": ""}, {"Date": "now"}, {"Date": "0"}, {"Date": DATE, "Age": "7"}],
)
def test_no_time_is_told_by_a_cache_or_by_what_is_not_a_date(headers: dict[str, str]):
    assert measure_skew(headers, STAMP, 0.1) is None


@pytest.mark.parametrize("date", ["Tue, 14 Nov 2023 22:13:20 -0000", "Tue Nov 14 22:13:20 2023"])
def test_other_spellings_of_a_date_are_universal_time_too(date: str):
    assert measure_skew({"Date": date}, STAMP, 0.0) == SkewSample(0.5, 0.5)


@pytest.mark.parametrize("small", [seen(1.9), seen(-2.0), seen(9.0, 9.5)])
def test_a_small_offset_or_an_uncertain_one_is_none(small: SkewSample):
    clock = ServiceClock()
    clock.record_accepted("live", small)
    clock.record_accepted("live", small)
    assert clock.offset("live") == 0
    assert clock.select_retry_correction("live", small, 0.0) is None


def test_one_odd_date_changes_nothing_and_two_that_agree_do():
    clock = ServiceClock()
    for offset in (25, 0, 25, 10, 25, 0):
        clock.record_accepted("live", seen(offset))
        assert clock.offset("live") == 0
    with capture_logs() as logs:
        clock.record_accepted("live", seen(25))
        clock.record_accepted("live", seen(26))
        clock.record_accepted("live", seen(25))
    assert clock.offset("live") == 26
    assert clock.offset("sandbox") == 0
    assert [entry["offset_seconds"] for entry in logs] == [26]


@pytest.mark.parametrize("offset", [32, -32, 3600])
def test_a_time_by_which_the_stamp_was_no_good_is_not_the_service_s(offset: float):
    clock = ServiceClock()
    for _ in range(3):
        clock.record_accepted("live", seen(offset))
    assert clock.offset("live") == 0
    for _ in range(2):
        clock.record_accepted("live", seen(offset), stamp_offset=offset / 2)
    assert clock.offset("live") == (offset if abs(offset) < 60 else 0)


def test_a_refusal_is_tried_again_at_once_at_the_time_it_tells():
    clock = ServiceClock()
    assert clock.select_retry_correction("live", seen(300), 0.0) == 300
    assert clock.offset("live") == 0  # not before it is known to help
    clock.record_proven("live", 300)
    assert clock.offset("live") == 300
    assert clock.select_retry_correction("live", seen(300), 300.0) is None


def test_a_refusal_of_a_call_that_was_stamped_before_the_correction_is_tried_again_too():
    clock = ServiceClock()
    clock.record_proven("live", 300)
    assert clock.select_retry_correction("live", seen(300), 0.0) == 300


def test_a_correction_that_only_dates_speak_for_is_given_up_on_a_refusal():
    clock = ServiceClock()
    clock.record_accepted("live", seen(25))
    clock.record_accepted("live", seen(25))
    assert clock.select_retry_correction("live", seen(25), 25.0) == 0
    clock.record_proven("live", 0)
    for _ in range(3):
        clock.record_accepted("live", seen(300))
    assert clock.offset("live") == 0


def test_a_proven_correction_follows_a_clock_that_drifts_or_is_set_right():
    clock = ServiceClock()
    clock.record_proven("live", 300)
    clock.record_accepted("live", seen(310))
    clock.record_accepted("live", seen(310))
    assert clock.offset("live") == 310
    assert clock.select_retry_correction("live", seen(0), 310.0) == 0
    with capture_logs() as logs:
        clock.record_proven("live", 0)
    assert clock.offset("live") == 0
    assert [entry["offset_seconds"] for entry in logs] == [0]
