"""The circuit breaker."""

from __future__ import annotations

import pytest

from gateway.upstream.breaker import BreakerCall, CircuitBreaker, CircuitBreakers
from mappings.failures import Unreachable


def ask(breaker: CircuitBreaker, now: float) -> BreakerCall:
    trial = breaker.admit(now)
    assert trial is not None
    return trial


def meet(breaker: CircuitBreaker, now: float, *met: str) -> None:
    for one in met:
        trial = ask(breaker, now)
        trial.outcome = one
        breaker.record_outcome(trial, now)


def opened(now: float = 0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, seconds=5)
    meet(breaker, now, "failure", "failure", "failure")
    return breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = CircuitBreaker(failures=3, seconds=5)
    meet(breaker, 0, "failure", "failure")
    assert breaker.state == "closed"
    meet(breaker, 0, "failure")
    assert breaker.state == "open"
    assert breaker.admit(4.9) is None


def test_any_answer_begins_the_count_anew_and_what_met_nothing_does_not() -> None:
    breaker = CircuitBreaker(failures=3, seconds=5)
    meet(breaker, 0, "failure", "failure", "answer", "failure", "failure", "nothing")
    assert breaker.state == "closed"
    meet(breaker, 0, "failure")
    assert breaker.state == "open"


def test_one_is_let_through_when_it_is_time_and_no_other_meanwhile() -> None:
    breaker = opened()
    probe = ask(breaker, 5)
    assert probe.is_probe
    assert breaker.state == "half_open"
    assert breaker.admit(100) is None
    probe.record_answer()
    breaker.record_outcome(probe, 100)
    assert breaker.state == "closed"
    assert not ask(breaker, 100).is_probe


def test_a_probe_that_fails_opens_it_for_as_long_again() -> None:
    breaker = opened()
    meet(breaker, 5, "failure")
    assert breaker.state == "open"
    assert (breaker.admit(9.9), breaker.compute_wait_seconds(9)) == (None, 1)
    assert ask(breaker, 10).is_probe


def test_a_probe_that_met_nothing_gives_its_place_to_the_next() -> None:
    breaker = opened()
    meet(breaker, 5, "nothing")
    assert ask(breaker, 5).is_probe


@pytest.mark.parametrize("met", ["answer", "failure"])
def test_what_was_asked_before_it_opened_decides_nothing(met: str) -> None:
    breaker = CircuitBreaker(failures=1, seconds=5)
    late = ask(breaker, 0)
    meet(breaker, 0, "failure")
    late.outcome = met  # type: ignore[assignment]
    breaker.record_outcome(late, 4)
    assert breaker.state == "open"
    assert ask(breaker, 5).is_probe


def test_without_a_number_of_failures_it_never_opens() -> None:
    breaker = CircuitBreaker(failures=0, seconds=5)
    meet(breaker, 0, *["failure"] * 100)
    assert breaker.state == "closed"


def test_environments_are_apart_and_one_that_is_open_says_when_to_come_again() -> None:
    now = [0.0]
    breakers = CircuitBreakers(("live", "sandbox"), 1, 5, lambda: now[0])
    with breakers.track("live") as trial:
        trial.record_failure()
    assert breakers.list_states() == {"live": "open", "sandbox": "closed"}
    now[0] = 1.5
    with pytest.raises(Unreachable) as refused, breakers.track("live"):
        pytest.fail("it is not to be asked")
    assert refused.value.retry_after == 4
    with breakers.track("sandbox") as trial:
        trial.record_answer()


def test_a_request_that_is_cancelled_is_no_failure() -> None:
    breakers = CircuitBreakers(("live",), 1, 5)
    with pytest.raises(KeyboardInterrupt), breakers.track("live"):
        raise KeyboardInterrupt
    assert breakers.list_states() == {"live": "closed"}
