"""The circuit breaker."""

from __future__ import annotations

import pytest

from gateway.upstream.circuit_breaker import BreakerCall, CircuitBreaker, CircuitBreakers
from mappings.failures import Unreachable


def allow_request(breaker: CircuitBreaker, now: float) -> BreakerCall:
    attempt = breaker.admit(now)
    assert attempt is not None
    return attempt


def run_requests(breaker: CircuitBreaker, now: float, *outcomes: str) -> None:
    for outcome in outcomes:
        attempt = allow_request(breaker, now)
        attempt.outcome = outcome
        breaker.record_outcome(attempt, now)


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
    probe = allow_request(breaker, 5)
    assert probe.is_probe
    assert breaker.state == "half_open"
    assert breaker.admit(100) is None
    probe.record_answer()
    breaker.record_outcome(probe, 100)
    assert breaker.state == "closed"
    assert not allow_request(breaker, 100).is_probe


def test_failed_probe_opens_circuit_again() -> None:
    breaker = open_breaker()
    run_requests(breaker, 5, "failure")
    assert breaker.state == "open"
    assert (breaker.admit(9.9), breaker.compute_wait_seconds(9)) == (None, 1)
    assert allow_request(breaker, 10).is_probe


def test_neutral_probe_allows_another_probe() -> None:
    breaker = open_breaker()
    run_requests(breaker, 5, "nothing")
    assert allow_request(breaker, 5).is_probe


@pytest.mark.parametrize("outcome", ["answer", "failure"])
def test_request_from_before_opening_changes_nothing(outcome: str) -> None:
    breaker = CircuitBreaker(failures=1, seconds=5)
    late_attempt = allow_request(breaker, 0)
    run_requests(breaker, 0, "failure")
    late_attempt.outcome = outcome  # type: ignore[assignment]
    breaker.record_outcome(late_attempt, 4)
    assert breaker.state == "open"
    assert allow_request(breaker, 5).is_probe


def test_zero_failures_disables_the_circuit_breaker() -> None:
    breaker = CircuitBreaker(failures=0, seconds=5)
    run_requests(breaker, 0, *["failure"] * 100)
    assert breaker.state == "closed"


def test_environments_are_independent_and_open_circuit_reports_retry_time() -> None:
    now = [0.0]
    breakers = CircuitBreakers(("live", "sandbox"), 1, 5, lambda: now[0])
    with breakers.track("live") as attempt:
        attempt.record_failure()
    assert breakers.map_environments_to_states() == {"live": "open", "sandbox": "closed"}
    now[0] = 1.5
    with pytest.raises(Unreachable) as raised_error, breakers.track("live"):
        pytest.fail("an open circuit admitted a request")
    assert raised_error.value.retry_after == 4
    with breakers.track("sandbox") as attempt:
        attempt.record_answer()


def test_cancelled_request_is_not_a_failure() -> None:
    breakers = CircuitBreakers(("live",), 1, 5)
    with pytest.raises(KeyboardInterrupt), breakers.track("live"):
        raise KeyboardInterrupt
    assert breakers.map_environments_to_states() == {"live": "closed"}
