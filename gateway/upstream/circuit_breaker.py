"""Circuit breakers: fail requests fast while an environment of a service does not respond.

After a number of consecutive failures (failed connections and missing responses) the breaker opens
for some seconds, and requests fail without being sent. Then one probe is sent, and its result
closes or reopens the breaker. Any response counts as success, whatever its status: a service that
refuses a request is up. Requests that were already sent are not affected.
"""

import time
from collections.abc import Callable, Mapping
from math import ceil
from typing import Literal

import structlog

from mappings.failures import CircuitOpen

log = structlog.get_logger()


Outcome = Literal["answer", "failure", "nothing"]
Service = Literal["current", "legacy"]


class CircuitBreaker:
    """The breaker of a service in one environment; logs its changes.

    With 0 ``max_failures`` it never opens.
    """

    def __init__(
        self,
        environment: str,
        max_failures: int,
        open_seconds: float,
        service: Service = "current",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log_fields = {"service": service, "environment": environment}
        self._subject = "the legacy service" if service == "legacy" else "the service"
        self._max_failures = max_failures
        self._open_seconds = open_seconds
        self._clock = clock
        self.failure_count = 0
        """Consecutive failures."""
        self.is_closed = True
        self._open_until = 0.0
        self._is_probing = False

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        if self.is_closed:
            return "closed"
        return "half_open" if self._is_probing else "open"

    def start_call(self) -> bool:
        """Returns whether the call is a probe; raises CircuitOpen if the breaker is open."""
        if self.is_closed:
            return False
        wait_seconds = self._open_until - self._clock()
        # Only one probe is sent at a time, so that a recovering service is not flooded.
        if not self._is_probing and wait_seconds <= 0:
            self._is_probing = True
            return True
        # A running probe may fail, and then the breaker is open for the whole time again.
        seconds = self._open_seconds if self._is_probing else wait_seconds
        raise CircuitOpen(
            f"the circuit breaker is open: {self._subject} did not respond to several calls in a row",
            retry_after=max(1, ceil(seconds)),
        )

    def end_call(self, outcome: Outcome, *, is_probe: bool) -> None:
        if is_probe:
            self._is_probing = False
            if outcome == "answer":
                self.is_closed = True
                log.warning("circuit_breaker_closed", **self._log_fields)
            # Not logged: an outage is logged once. Without an outcome, the next request becomes
            # the probe.
            elif outcome == "failure":
                self._open_until = self._clock() + self._open_seconds
        # Requests that were sent before the breaker opened say nothing new when they end.
        elif self.is_closed and outcome != "nothing":
            # Consecutive failures only: any response resets the count.
            self.failure_count = 0 if outcome == "answer" else self.failure_count + 1
            if self._max_failures and self.failure_count >= self._max_failures:
                self._open()

    def _open(self) -> None:
        self.failure_count, self.is_closed = 0, False
        self._open_until = self._clock() + self._open_seconds
        log.error(
            "circuit_breaker_opened",
            **self._log_fields,
            reason=f"{self._subject} did not respond to {self._max_failures} calls in a row; clients "
            "get 500",
            hint="wait, and settle no write yet; `payout-gateway doctor` says what does not answer",
        )


CircuitBreakers = Mapping[str, CircuitBreaker]
"""The breakers of a service, by environment."""
