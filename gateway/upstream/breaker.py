"""Whether an environment of the service is asked at all, after it gave no answers for a while.

So many failures in a row, connections that fail or answers that do not come, and nothing more is
asked for some seconds: clients are told at once what they would be told after waiting. Then one
request is let through, and its answer decides for all. Any answer is one, whatever its status: it
may be a refusal of that one request, and a service that refuses is there.

Only what has not been sent is ever kept back. What was sent is none of its business.
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
    """A request that is let through; what it met is for the breaker to know."""

    is_probe: bool
    met: Literal["answer", "failure", "nothing"] = "nothing"

    def answered(self) -> None:
        self.met = "answer"

    def failed(self) -> None:
        self.met = "failure"


class Breaker:
    """Of one environment; ``now`` is a monotonic clock's, in seconds. No failures: never opens."""

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
        """None where nothing is to be sent."""
        if self._until is None:
            return BreakerCall(is_probe=False)
        if self._probing or now < self._until:
            return None
        self._probing = True
        return BreakerCall(is_probe=True)

    def wait(self, now: float) -> float:
        """Seconds until another probe may go."""
        if self._until is None:
            return 0
        return self._seconds if self._probing else max(0, self._until - now)

    def over(self, trial: BreakerCall, now: float) -> None:
        if trial.is_probe:
            self._probing = False
            if trial.met != "nothing":  # else the next one is the probe
                self._decide(now, good=trial.met == "answer")
        elif self._until is None and trial.met != "nothing":  # those of before say nothing new
            self._failures = 0 if trial.met == "answer" else self._failures + 1
            if self._most and self._failures >= self._most:
                self._decide(now, good=False)

    def _decide(self, now: float, *, good: bool) -> None:
        self._failures = 0
        self._until = None if good else now + self._seconds


class Breakers:
    """One for each environment of a service; every change is logged."""

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
        """One request, until it is known what it met; raises Unreachable where none is to be sent."""
        return _Trying(self, environment)

    def asked(self, environment: str) -> BreakerCall:
        breaker = self._by.get(environment)
        if breaker is None:
            return BreakerCall(is_probe=False)
        trial = breaker.ask(self._clock())
        if trial is None:
            seconds = max(1, ceil(breaker.wait(self._clock())))
            why = "circuit breaker open: the service did not respond to several calls in a row"
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
    """The ``with`` of a trial. No generator: each call has one."""

    __slots__ = ("_breakers", "_environment", "_trial")

    def __init__(self, breakers: Breakers, environment: str) -> None:
        self._breakers = breakers
        self._environment = environment

    def __enter__(self) -> BreakerCall:
        self._trial = self._breakers.asked(self._environment)
        return self._trial

    def __exit__(self, *_: object) -> None:
        self._breakers.over(self._environment, self._trial)
