"""Remembers what keeps the service from serving the gateway, for operators.

A refusal concerns the gateway's own credentials (or its address), although the client is the one
that sees an error: its API key is valid. A service that answers with errors does not open the
circuit breaker, because it responds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.auth.signing import Credentials

FORGET_SECONDS = 600.0
"""Refusals are forgotten after this time, if no request repeats them."""

FAILURES_IN_A_ROW = 3
FAILURE_SECONDS = 120.0
"""Failures are forgotten after this time: twice the longest pause of the reconciler's reads."""


class ServiceProblems:
    """The refused credentials and the failures of each environment, until a call succeeds.

    Reads and writes are counted separately: a service may answer one kind only.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.by_credentials: dict[tuple[str, str], tuple[int, bool, float]] = {}
        self.failures: dict[tuple[str, bool], tuple[int, float]] = {}

    def record_failure(self, environment: str, *, is_write: bool) -> None:
        """Records a call with a 5xx or without an answer."""
        count, _ = self.failures.get((environment, is_write), (0, 0.0))
        self.failures[environment, is_write] = count + 1, self._clock()

    def record_answer(
        self, environment: str, credentials: Credentials, status: int, *, is_write: bool
    ) -> None:
        """Records an answer to a signed call. 403: the signature is fine, and access is denied."""
        if status >= 500:
            self.record_failure(environment, is_write=is_write)
            return
        self.failures.pop((environment, is_write), None)
        key = environment, credentials.access_key
        if status in (401, 403):
            self.by_credentials[key] = status, credentials.look_swapped, self._clock()
        # Usually empty, so that an accepted call costs one test.
        elif self.by_credentials and status < 400:
            self.by_credentials.pop(key, None)

    def forget_refusals(self, _changed_keys: object) -> None:
        """Listens to changes of keys: credentials that were replaced are never accepted again.

        What is still refused is recorded again with the next request.
        """
        self.by_credentials.clear()

    def count_refused(self, environment: str) -> int:
        return len(self._list_refusals(environment))

    def describe_problem(self, environment: str) -> str | None:
        """Returns one line for operators; None if the service serves the gateway."""
        refusals = self._list_refusals(environment)
        if not refusals:
            return self._describe_failures(environment)
        count = len(refusals)
        subject = f"{count} merchant{'s' if count > 1 else ''}"
        if all(status == 403 for status, _ in refusals):
            return (
                f"the service refuses the gateway: it denies access (403) for the credentials of {subject}, "
                "and their clients are refused; check the access key's permissions and the service's "
                "allow-list"
            )
        hint = (
            "access_key and secret_key look swapped"
            if any(look_swapped for _, look_swapped in refusals)
            else "run `payout-gateway doctor`"
        )
        return (
            f"the service refuses the gateway: the credentials of {subject} are not accepted (401), "
            f"and their clients are refused; {hint}"
        )

    def _describe_failures(self, environment: str) -> str | None:
        since = self._clock() - FAILURE_SECONDS
        for kind, is_write in (("reads", False), ("writes", True)):
            count, last_at = self.failures.get((environment, is_write), (0, 0.0))
            if count >= FAILURES_IN_A_ROW and last_at >= since:
                return (
                    f"the service is failing: its last {count} {kind} got an error (5xx) or no "
                    "answer, and clients get 500"
                )
        return None

    def _list_refusals(self, environment: str) -> list[tuple[int, bool]]:
        now = self._clock()
        self.by_credentials = {
            key: refusal
            for key, refusal in self.by_credentials.items()
            if now - refusal[2] < FORGET_SECONDS
        }
        return [
            (status, look_swapped)
            for (name, _), (status, look_swapped, _at) in self.by_credentials.items()
            if name == environment
        ]
