"""The circuit breaker."""

from __future__ import annotations

import pytest

from gateway.upstream.circuit_breaker import CircuitBreaker, Outcome
from mappings.failures import CircuitOpen


class TimedBreaker(CircuitBreaker):
    """A breaker whose clock is ``now``."""

    def __init__(self, max_failures: int = 3) -> None:
        self.now = 0.0
        super().__init__("live", max_failures, 5, clock=lambda: self.now)

    def run_requests(self, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            self.end_call(outcome, is_probe=self.start_call())

    def find_wait_seconds(self) -> int | None:
        with pytest.raises(CircuitOpen) as raised_error:
            self.start_call()
        return raised_error.value.retry_after


def open_breaker() -> TimedBreaker:
    breaker = TimedBreaker()
    breaker.run_requests("failure", "failure", "failure")
    return breaker


def test_answer_resets_failure_count_and_neutral_outcome_does_not() -> None:
    breaker = TimedBreaker()
    breaker.run_requests("failure", "failure", "answer", "failure", "failure", "nothing")
    assert breaker.state == "closed"
    breaker.run_requests("failure")
    assert breaker.state == "open"


def test_one_probe_at_a_time_is_allowed_after_waiting() -> None:
    breaker = open_breaker()
    breaker.now = 5
    assert breaker.start_call()
    assert breaker.state == "half_open"
    breaker.now = 100
    assert breaker.find_wait_seconds() == 5
    breaker.end_call("answer", is_probe=True)
    assert breaker.state == "closed"
    assert not breaker.start_call()


def test_failed_probe_opens_circuit_again() -> None:
    breaker = open_breaker()
    breaker.now = 5
    breaker.run_requests("failure")
    assert breaker.state == "open"
    breaker.now = 9.9
    assert breaker.find_wait_seconds() == 1
    breaker.now = 10
    assert breaker.start_call()


def test_neutral_probe_allows_another_probe() -> None:
    breaker = open_breaker()
    breaker.now = 5
    breaker.run_requests("nothing")
    assert breaker.start_call()


@pytest.mark.parametrize("outcome", ["answer", "failure"])
def test_request_from_before_opening_changes_nothing(outcome: Outcome) -> None:
    breaker = TimedBreaker(max_failures=1)
    is_probe = breaker.start_call()
    breaker.run_requests("failure")
    breaker.now = 4
    breaker.end_call(outcome, is_probe=is_probe)
    assert breaker.state == "open"
    breaker.now = 5
    assert breaker.start_call()


def test_zero_failures_disables_the_circuit_breaker() -> None:
    breaker = TimedBreaker(max_failures=0)
    breaker.run_requests(*["failure"] * 100)
    assert breaker.state == "closed"
