"""Fair concurrency limits: running, waiting and shed requests of several merchants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.load.fair_limiter import FairLimiter, LimiterCapacity, Waiter, WaiterState

CAPACITY = LimiterCapacity(
    max_running=4, max_running_per_merchant=3, max_waiting=6, max_waiting_per_merchant=4
)


def request_slots(shares: FairLimiter, merchant: str, times: int = 1) -> list[Waiter]:
    return [shares.enter(merchant)[0] for _ in range(times)]


def format_states(tickets: list[Waiter]) -> str:
    """Format states as letters: ``GGW-`` is running, running, waiting, shed."""
    letters = {
        WaiterState.RUNNING: "G",
        WaiterState.WAITING: "W",
        WaiterState.SHED: "-",
        WaiterState.FINISHED: "o",
    }
    return "".join(letters[ticket.state] for ticket in tickets)


def test_merchant_has_bounded_concurrency_and_queue() -> None:
    assert format_states(request_slots(FairLimiter(CAPACITY), "a", 8)) == "GGGWWWW-"


def test_merchant_at_its_limit_does_not_block_others() -> None:
    shares = FairLimiter(CAPACITY)
    request_slots(shares, "slow", 100)
    assert format_states(request_slots(shares, "other")) == "G"


def test_next_slot_goes_to_merchant_with_fewest_running() -> None:
    shares = FairLimiter(CAPACITY)
    slow = request_slots(shares, "slow", 5)
    (other, waits) = request_slots(shares, "other", 2)
    assert format_states([*slow, other, waits]) == "GGGWWGW"
    assert shares.leave(slow[0]) == [waits], "slow has two running, and other one"
    assert shares.leave(other) == [slow[3]]


def test_requests_of_one_merchant_run_in_arrival_order() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 5, 5))
    first, *rest = request_slots(shares, "a", 4)
    gone = [first]
    while found := shares.leave(gone[-1]):
        gone += found
    assert gone == [first, *rest]


def test_full_queue_displaces_last_waiter_of_longest_queue() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 4, 4))
    many = request_slots(shares, "many", 5)
    ticket, displaced = shares.enter("few")
    assert ticket.state is WaiterState.WAITING
    assert displaced == [many[4]]
    assert format_states(many) == "GWWW-"


def test_waiter_is_not_displaced_by_merchant_with_equal_demand() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 4, 4))
    request_slots(shares, "a", 3)
    request_slots(shares, "b", 2)
    assert format_states(request_slots(shares, "b")) == "-"


def test_cancelled_waiter_leaves_the_queue() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 1, 1))
    going, waits = request_slots(shares, "a", 2)
    assert shares.leave(waits) == []
    (again,) = request_slots(shares, "a")
    assert shares.leave(going) == [again]


def test_slot_is_released_only_once() -> None:
    shares = FairLimiter(CAPACITY)
    (ticket,) = request_slots(shares, "a")
    shares.leave(ticket)
    shares.leave(ticket)
    assert (shares.running_count, shares.waiting_count) == (0, 0)
    assert format_states(request_slots(shares, "a", 8)) == "GGGWWWW-"


def test_would_shed_predicts_the_decision() -> None:
    shares = FairLimiter(CAPACITY)
    assert not shares.would_shed("a")
    request_slots(shares, "a", 7)
    assert shares.would_shed("a")
    assert not shares.would_shed("b")


step_lists = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=80)


@given(step_lists)
def test_bounds_hold_and_no_slot_stays_unused_for_any_sequence(
    steps: list[tuple[str, int]],
) -> None:
    shares, tickets = FairLimiter(CAPACITY), list[Waiter]()
    for merchant, number in steps:
        if number < len(tickets):
            shares.leave(tickets[number])
        else:
            tickets.append(shares.enter(merchant)[0])
        going = [one for one in tickets if one.state is WaiterState.RUNNING]
        waits = [one for one in tickets if one.state is WaiterState.WAITING]
        assert (len(going), len(waits)) == (shares.running_count, shares.waiting_count)
        assert len(going) <= CAPACITY.max_running
        assert len(waits) <= CAPACITY.max_waiting
        for one in "abc":
            own = sum(ticket.merchant == one for ticket in going)
            assert own <= CAPACITY.max_running_per_merchant
            its = sum(ticket.merchant == one for ticket in waits)
            assert its <= CAPACITY.max_waiting_per_merchant
            assert (
                not its
                or own == CAPACITY.max_running_per_merchant
                or len(going) == CAPACITY.max_running
            )
