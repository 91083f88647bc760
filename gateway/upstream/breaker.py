"""Circuit breakers: fail requests fast while an environment of a service does not respond.

After a number of consecutive failures (failed connections and missing responses) the breaker opens
for some seconds, and requests fail without being sent. Then one probe is sent, and its result
closes or reopens the breaker. Any response counts as success, whatever its status: a service that
refuses a request is up. Requests that were already sent are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

import structlog

from mappings.grammar import Unreachable

State = Literal["closed", "open", "half_open"]

log = structlog.get_logger()


@dataclass(slots=True)
class BreakerCall:
    """A request that the breaker admits, and its outcome."""

    is_probe: bool
    met: Literal["answer", "failure", "nothing"] = "nothing"

    def answered(self) -> None:
        self.met = "answer"

    def failed(self) -> None:
        self.met = "failure"


class Breaker:
    """The breaker of one environment; ``now`` is in seconds of a monotonic clock.

    With 0 ``failures`` it never opens.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        self._most = failures
        self._seconds = seconds
        self._failures = 0
        self._until: float | None = None
        self._probing = False

    @property
    def state(self) -> State:
        if self._until is None:
            return "closed"
        return "half_open" if self._probing else "open"

    def ask(self, now: float) -> BreakerCall | None:
        """Admits a request; None if it must not be sent."""
        if self._until is None:
            return BreakerCall(is_probe=False)
        # One probe at a time, so that a recovering service is not flooded.
        if self._probing or now < self._until:
            return None
        self._probing = True
        return BreakerCall(is_probe=True)

    def wait(self, now: float) -> float:
        """Returns the seconds until the next probe may be sent."""
        if self._until is None:
            return 0
        return self._seconds if self._probing else max(0, self._until - now)

    def over(self, trial: BreakerCall, now: float) -> None:
        if trial.is_probe:
            self._probing = False
            if trial.met != "nothing":  # otherwise the next request becomes the probe
                self._decide(now, good=trial.met == "answer")
        # Requests that were sent before the breaker opened say nothing new when they end.
        elif self._until is None and trial.met != "nothing":
            # Consecutive failures only: any response resets the count.
            self._failures = 0 if trial.met == "answer" else self._failures + 1
            if self._most and self._failures >= self._most:
                self._decide(now, good=False)

    def _decide(self, now: float, *, good: bool) -> None:
        self._failures = 0
        self._until = None if good else now + self._seconds


class Breakers:
    """The breakers of a service, by environment; logs state changes."""

    def __init__(
        self,
        environments: Mapping[str, object],
        failures: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        service: Literal["current", "legacy"] = "current",
    ) -> None:
        self._service = service
        self._failures = failures
        self._by = {name: Breaker(failures, seconds) for name in environments}
        self._clock = clock

    def states(self) -> dict[str, State]:
        return {name: breaker.state for name, breaker in self._by.items()}

    def trial(self, environment: str) -> _Trying:
        """Returns a context manager for one request; entering raises Unreachable if it is open."""
        return _Trying(self, environment)

    def asked(self, environment: str) -> BreakerCall:
        breaker = self._by.get(environment)
        if breaker is None:
            return BreakerCall(is_probe=False)
        trial = breaker.ask(self._clock())
        if trial is None:
            seconds = max(1, ceil(breaker.wait(self._clock())))
            why = (
                "the circuit breaker is open: the service did not respond to several calls in a row"
            )
            raise Unreachable(why, retry_after=seconds)
        return trial

    def over(self, environment: str, trial: BreakerCall) -> None:
        if (breaker := self._by.get(environment)) is not None:
            before = breaker.state
            breaker.over(trial, self._clock())
            self._tell(environment, before, breaker.state)

    def _tell(self, environment: str, before: State, now: State) -> None:
        if now == before:
            return
        its = {"service": self._service, "environment": environment}
        if now == "closed":
            log.warning("circuit_breaker_closed", **its)
        elif before == "closed":
            reason = f"{self._failures} calls in a row got no response"
            log.error("circuit_breaker_opened", **its, reason=reason)


class _Trying:
    """Context manager of ``Breakers.track``; a class, because a generator costs more per call."""

    __slots__ = ("_breakers", "_environment", "_trial")

    def __init__(self, breakers: Breakers, environment: str) -> None:
        self._breakers = breakers
        self._environment = environment

    def __enter__(self) -> BreakerCall:
        self._trial = self._breakers.asked(self._environment)
        return self._trial

    def __exit__(self, *_: object) -> None:
        self._breakers.over(self._environment, self._trial)
