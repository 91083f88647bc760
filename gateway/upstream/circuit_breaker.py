"""Circuit breakers: fail requests fast while an environment of a service does not respond.

After a number of consecutive failures (failed connections and missing responses) the breaker opens
for some seconds, and requests fail without being sent. Then one probe is sent, and its result
closes or reopens the breaker. Any response counts as success, whatever its status: a service that
refuses a request is up. Requests that were already sent are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import ceil
from typing import Literal

import structlog

from mappings.failures import CircuitOpen

BreakerState = Literal["closed", "open", "half_open"]

log = structlog.get_logger()


Outcome = Literal["answer", "failure", "nothing"]
Service = Literal["current", "legacy"]


class CircuitBreaker:
    """The breaker of one environment; ``now`` is in seconds of a monotonic clock.

    With 0 ``failures`` it never opens.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        self._max_failures = failures
        self._open_seconds = seconds
        self.failure_count = 0
        """Consecutive failures."""
        self.is_closed = True
        self._open_until: float | None = None
        self._is_probing = False

    @property
    def state(self) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "half_open" if self._is_probing else "open"

    def admit(self, now: float) -> bool | None:
        """Returns whether a call is a probe; None if it must not be sent."""
        if self._open_until is None:
            return False
        # Only one probe is sent at a time, so that a recovering service is not flooded.
        if self._is_probing or now < self._open_until:
            return None
        self._is_probing = True
        return True

    def compute_wait_seconds(self, now: float) -> float:
        """Returns the seconds until the next probe may be sent."""
        if self._open_until is None:
            return 0
        # A running probe may fail, and then the breaker is open for the whole time again.
        return self._open_seconds if self._is_probing else max(0, self._open_until - now)

    def record_outcome(self, outcome: Outcome, now: float, *, is_probe: bool) -> None:
        if is_probe:
            self._is_probing = False
            if outcome != "nothing":  # otherwise the next request becomes the probe
                self._open_or_close(now, is_healthy=outcome == "answer")
        # Requests that were sent before the breaker opened say nothing new when they end.
        elif self._open_until is None and outcome != "nothing":
            # Consecutive failures only: any response resets the count.
            self.failure_count = 0 if outcome == "answer" else self.failure_count + 1
            if self._max_failures and self.failure_count >= self._max_failures:
                self._open_or_close(now, is_healthy=False)

    def _open_or_close(self, now: float, *, is_healthy: bool) -> None:
        self.failure_count, self.is_closed = 0, is_healthy
        self._open_until = None if is_healthy else now + self._open_seconds


class CircuitBreakers:
    """The breakers of a service, by environment; logs state changes."""

    def __init__(
        self,
        environments: Mapping[str, object],
        failures: int,
        seconds: float,
        service: Service = "current",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._subject = "the legacy service" if service == "legacy" else "the service"
        self._failures = failures
        self._breakers = {name: CircuitBreaker(failures, seconds) for name in environments}
        self._clock = clock

    def map_environments_to_states(self) -> dict[str, BreakerState]:
        return {name: breaker.state for name, breaker in self._breakers.items()}

    def find_breaker(self, environment: str) -> CircuitBreaker:
        """Returns the breaker of a configured environment."""
        return self._breakers[environment]

    def start_call(self, environment: str) -> bool:
        """Returns whether the call is a probe; raises CircuitOpen if the breaker is open."""
        breaker = self._breakers.get(environment)
        if breaker is None or breaker.is_closed:
            return False
        is_probe = breaker.admit(self._clock())
        if is_probe is None:
            seconds = max(1, ceil(breaker.compute_wait_seconds(self._clock())))
            raise CircuitOpen(
                f"the circuit breaker is open: {self._subject} did not respond to several calls in a row",
                retry_after=seconds,
            )
        return is_probe

    def end_call(self, environment: str, outcome: Outcome, *, is_probe: bool) -> None:
        if (breaker := self._breakers.get(environment)) is None:
            return
        old_state = breaker.state
        breaker.record_outcome(outcome, self._clock(), is_probe=is_probe)
        self._log_change(environment, old_state, breaker.state)

    def _log_change(
        self, environment: str, old_state: BreakerState, new_state: BreakerState
    ) -> None:
        if new_state == old_state:
            return
        log_fields = {"service": self._service, "environment": environment}
        if new_state == "closed":
            log.warning("circuit_breaker_closed", **log_fields)
        # A failed probe is not logged: an outage is logged once.
        elif old_state == "closed":
            log.error(
                "circuit_breaker_opened",
                **log_fields,
                reason=f"{self._subject} did not respond to {self._failures} calls in a row; clients "
                "get 500",
                hint="wait, and settle no write yet; `payout-gateway doctor` says what does not answer",
            )
