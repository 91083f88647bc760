"""Fair concurrency limits: running, waiting and shed requests of several merchants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.load.requests import FairLimiter, Waiter
from gateway.config.settings import Load

LIMITS = Load(in_flight=4, in_flight_per_merchant=3, queue=6, queue_per_merchant=4)


def request_slots(limiter: FairLimiter, merchant: str, times: int = 1) -> list[Waiter]:
    return [limiter.admit_or_queue(merchant) for _ in range(times)]


def format_states(waiters: list[Waiter]) -> str:
    """Format states as letters: ``GGW-`` is running, running, waiting, shed."""
    state_letters = {"running": "G", "waiting": "W", "shed": "-", "finished": "o"}
    return "".join(state_letters[waiter.state] for waiter in waiters)


def test_merchant_has_bounded_concurrency_and_queue() -> None:
    assert format_states(request_slots(FairLimiter(LIMITS), "a", 8)) == "GGGWWWW-"


def test_merchant_at_its_limit_does_not_block_others() -> None:
    limiter = FairLimiter(LIMITS)
    request_slots(limiter, "slow", 100)
    assert format_states(request_slots(limiter, "other")) == "G"


def test_next_slot_goes_to_merchant_with_fewest_running() -> None:
    limiter = FairLimiter(LIMITS)
    slow_waiters = request_slots(limiter, "slow", 5)
    (other_waiter, waiting) = request_slots(limiter, "other", 2)
    assert format_states([*slow_waiters, other_waiter, waiting]) == "GGGWWGW"
    limiter.remove(slow_waiters[0])
    assert format_states([*slow_waiters, waiting]) == "oGGWWG", (
        "slow has two running, and other one"
    )
    limiter.remove(other_waiter)
    assert format_states([*slow_waiters, waiting]) == "oGGGWG"


def test_requests_of_one_merchant_run_in_arrival_order() -> None:
    limiter = FairLimiter(
        Load(in_flight=1, in_flight_per_merchant=1, queue=5, queue_per_merchant=5)
    )
    waiters = request_slots(limiter, "a", 4)
    for waiter, states in zip(waiters, ("oGWW", "ooGW", "oooG", "oooo"), strict=True):
        limiter.remove(waiter)
        assert format_states(waiters) == states


def test_full_queue_displaces_last_waiter_of_longest_queue() -> None:
    limiter = FairLimiter(
        Load(in_flight=1, in_flight_per_merchant=1, queue=4, queue_per_merchant=4)
    )
    waiters = request_slots(limiter, "many", 5)
    assert limiter.admit_or_queue("few").state == "waiting"
    assert format_states(waiters) == "GWWW-"


def test_waiter_is_not_displaced_by_merchant_with_equal_demand() -> None:
    limiter = FairLimiter(
        Load(in_flight=1, in_flight_per_merchant=1, queue=4, queue_per_merchant=4)
    )
    request_slots(limiter, "a", 3)
    request_slots(limiter, "b", 2)
    assert format_states(request_slots(limiter, "b")) == "-"


def test_cancelled_waiter_leaves_the_queue() -> None:
    limiter = FairLimiter(
        Load(in_flight=1, in_flight_per_merchant=1, queue=1, queue_per_merchant=1)
    )
    running, waiting = request_slots(limiter, "a", 2)
    limiter.remove(waiting)
    (retried_waiter,) = request_slots(limiter, "a")
    limiter.remove(running)
    assert format_states([running, waiting, retried_waiter]) == "ooG"


def test_slot_is_released_only_once() -> None:
    limiter = FairLimiter(LIMITS)
    (waiter,) = request_slots(limiter, "a")
    limiter.remove(waiter)
    limiter.remove(waiter)
    assert (limiter.running_count, limiter.waiting_count) == (0, 0)
    assert format_states(request_slots(limiter, "a", 8)) == "GGGWWWW-"


def test_would_shed_predicts_the_decision() -> None:
    limiter = FairLimiter(LIMITS)
    assert not limiter.would_shed("a")
    request_slots(limiter, "a", 7)
    assert limiter.would_shed("a")
    assert not limiter.would_shed("b")


step_lists = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=80)


@given(step_lists)
def test_bounds_hold_and_no_slot_stays_unused_for_any_sequence(
    steps: list[tuple[str, int]],
) -> None:
    limiter, waiters = FairLimiter(LIMITS), list[Waiter]()
    for merchant, number in steps:
        if number < len(waiters):
            limiter.remove(waiters[number])
        else:
            waiters.append(limiter.admit_or_queue(merchant))
        running = [waiter for waiter in waiters if waiter.state == "running"]
        waiting = [waiter for waiter in waiters if waiter.state == "waiting"]
        assert (len(running), len(waiting)) == (limiter.running_count, limiter.waiting_count)
        assert len(running) <= LIMITS.in_flight
        assert len(waiting) <= LIMITS.queue
        for name in "abc":
            running_count = sum(waiter.merchant == name for waiter in running)
            assert running_count <= LIMITS.in_flight_per_merchant
            waiting_count = sum(waiter.merchant == name for waiter in waiting)
            assert waiting_count <= LIMITS.queue_per_merchant
            assert (
                not waiting_count
                or running_count == LIMITS.in_flight_per_merchant
                or len(running) == LIMITS.in_flight
            )
