"""The circuit breaker."""

from __future__ import annotations

import pytest

from gateway.upstream.circuit_breaker import CircuitBreaker, CircuitBreakers, Outcome
from mappings.failures import Unreachable


def start_call(breaker: CircuitBreaker, now: float) -> bool:
    """Returns whether the call is a probe."""
    is_probe = breaker.admit(now)
    assert is_probe is not None
    return is_probe


def run_requests(breaker: CircuitBreaker, now: float, *outcomes: Outcome) -> None:
    for outcome in outcomes:
        breaker.record_outcome(outcome, now, is_probe=start_call(breaker, now))


def open_breaker(now: float = 0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, seconds=5)
    run_requests(breaker, now, "failure", "failure", "failure")
    return breaker


def test_circuit_opens_after_consecutive_failures() -> None:
    breaker = CircuitBreaker(failures=3, seconds=5)
    run_requests(breaker, 0, "failure", "failure")
    assert breaker.state == "closed"
    run_requests(breaker, 0, "failure")
    assert breaker.state == "open"
    assert breaker.admit(4.9) is None


def test_answer_resets_failure_count_and_neutral_outcome_does_not() -> None:
    breaker = CircuitBreaker(failures=3, seconds=5)
    run_requests(breaker, 0, "failure", "failure", "answer", "failure", "failure", "nothing")
    assert breaker.state == "closed"
    run_requests(breaker, 0, "failure")
    assert breaker.state == "open"


def test_one_probe_at_a_time_is_allowed_after_waiting() -> None:
    breaker = open_breaker()
    assert start_call(breaker, 5)
    assert breaker.state == "half_open"
    assert breaker.admit(100) is None
    breaker.record_outcome("answer", 100, is_probe=True)
    assert breaker.state == "closed"
    assert not start_call(breaker, 100)


def test_failed_probe_opens_circuit_again() -> None:
    breaker = open_breaker()
    run_requests(breaker, 5, "failure")
    assert breaker.state == "open"
    assert (breaker.admit(9.9), breaker.compute_wait_seconds(9)) == (None, 1)
    assert start_call(breaker, 10)


def test_neutral_probe_allows_another_probe() -> None:
    breaker = open_breaker()
    run_requests(breaker, 5, "nothing")
    assert start_call(breaker, 5)


@pytest.mark.parametrize("outcome", ["answer", "failure"])
def test_request_from_before_opening_changes_nothing(outcome: Outcome) -> None:
    breaker = CircuitBreaker(failures=1, seconds=5)
    is_probe = start_call(breaker, 0)
    run_requests(breaker, 0, "failure")
    breaker.record_outcome(outcome, 4, is_probe=is_probe)
    assert breaker.state == "open"
    assert start_call(breaker, 5)


def test_zero_failures_disables_the_circuit_breaker() -> None:
    breaker = CircuitBreaker(failures=0, seconds=5)
    run_requests(breaker, 0, *["failure"] * 100)
    assert breaker.state == "closed"


def test_environments_are_independent_and_open_circuit_reports_retry_time() -> None:
    now = [0.0]
    breakers = CircuitBreakers(("live", "sandbox"), 1, 5, clock=lambda: now[0])
    breakers.end_call("live", "failure", is_probe=breakers.start_call("live"))
    assert breakers.map_environments_to_states() == {"live": "open", "sandbox": "closed"}
    now[0] = 1.5
    with pytest.raises(Unreachable) as raised_error:
        breakers.start_call("live")
    assert raised_error.value.retry_after == 4
    breakers.end_call("sandbox", "answer", is_probe=breakers.start_call("sandbox"))
