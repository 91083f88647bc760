"""Fair concurrency limits: running, waiting and shed requests of several merchants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.load.fair_limiter import FairLimiter, LimiterCapacity, Waiter, WaiterState

ROOM = LimiterCapacity(going=4, going_per_merchant=3, waiting=6, waiting_per_merchant=4)


def asked(shares: FairLimiter, merchant: str, times: int = 1) -> list[Waiter]:
    return [shares.ask(merchant)[0] for _ in range(times)]


def standings(tickets: list[Waiter]) -> str:
    """Format states as letters: ``GGW-`` is running, running, waiting, shed."""
    letters = {
        WaiterState.GOES: "G",
        WaiterState.WAITS: "W",
        WaiterState.SHED: "-",
        WaiterState.OVER: "o",
    }
    return "".join(letters[one.standing] for one in tickets)


def test_a_merchant_has_so_many_at_once_and_so_many_that_wait() -> None:
    assert standings(asked(FairLimiter(ROOM), "a", 8)) == "GGGWWWW-"


def test_a_merchant_that_fills_its_own_places_keeps_no_other_from_going() -> None:
    shares = FairLimiter(ROOM)
    asked(shares, "slow", 100)
    assert standings(asked(shares, "other")) == "G"


def test_the_next_place_goes_to_the_merchant_that_has_the_fewest() -> None:
    shares = FairLimiter(ROOM)
    slow = asked(shares, "slow", 5)
    (other, waits) = asked(shares, "other", 2)
    assert standings([*slow, other, waits]) == "GGGWWGW"
    assert shares.leave(slow[0]) == [waits], "slow has two running, and other one"
    assert shares.leave(other) == [slow[3]]


def test_a_merchants_own_go_in_the_order_in_which_they_came() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 5, 5))
    first, *rest = asked(shares, "a", 4)
    gone = [first]
    while found := shares.leave(gone[-1]):
        gone += found
    assert gone == [first, *rest]


def test_a_full_queue_gives_way_from_the_longest_to_who_asks_for_little() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 4, 4))
    many = asked(shares, "many", 5)
    ticket, displaced = shares.ask("few")
    assert ticket.standing is WaiterState.WAITS
    assert displaced == [many[4]]
    assert standings(many) == "GWWW-"


def test_nobody_is_displaced_for_one_that_asks_for_as_much() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 4, 4))
    asked(shares, "a", 3)
    asked(shares, "b", 2)
    assert standings(asked(shares, "b")) == "-"


def test_whoever_waits_no_more_leaves_its_place_in_the_queue() -> None:
    shares = FairLimiter(LimiterCapacity(1, 1, 1, 1))
    going, waits = asked(shares, "a", 2)
    assert shares.leave(waits) == []
    (again,) = asked(shares, "a")
    assert shares.leave(going) == [again]


def test_what_was_left_is_left_once() -> None:
    shares = FairLimiter(ROOM)
    (ticket,) = asked(shares, "a")
    shares.leave(ticket)
    shares.leave(ticket)
    assert (shares.going, shares.waiting) == (0, 0)
    assert standings(asked(shares, "a", 8)) == "GGGWWWW-"


def test_it_can_be_told_beforehand_who_would_be_shed() -> None:
    shares = FairLimiter(ROOM)
    assert not shares.would_shed("a")
    asked(shares, "a", 7)
    assert shares.would_shed("a")
    assert not shares.would_shed("b")


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=80)


@given(STEPS)
def test_whatever_comes_the_bounds_hold_and_no_place_stays_empty(
    steps: list[tuple[str, int]],
) -> None:
    shares, tickets = FairLimiter(ROOM), list[Waiter]()
    for merchant, number in steps:
        if number < len(tickets):
            shares.leave(tickets[number])
        else:
            tickets.append(shares.ask(merchant)[0])
        going = [one for one in tickets if one.standing is WaiterState.GOES]
        waits = [one for one in tickets if one.standing is WaiterState.WAITS]
        assert (len(going), len(waits)) == (shares.going, shares.waiting)
        assert len(going) <= ROOM.going
        assert len(waits) <= ROOM.waiting
        for one in "abc":
            own = sum(ticket.merchant == one for ticket in going)
            assert own <= ROOM.going_per_merchant
            its = sum(ticket.merchant == one for ticket in waits)
            assert its <= ROOM.waiting_per_merchant
            assert not its or own == ROOM.going_per_merchant or len(going) == ROOM.going
