"""Remembers credentials of the gateway that the service refuses, for operators.

A refusal concerns the gateway's own credentials (or its address), although the client is the one
that sees an error: its API key is valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.auth.signing import Credentials

FORGET_SECONDS = 600.0
"""Refusals are forgotten after this time: replaced credentials are never accepted again."""


class CredentialRefusals:
    """The refused credentials of each environment, until they are accepted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.by_credentials: dict[tuple[str, str], tuple[int, bool, float]] = {}

    def record_answer(self, environment: str, credentials: Credentials, status: int) -> None:
        """Records an answer to a signed call. 403: the signature is fine, and access is denied."""
        key = environment, credentials.access_key
        if status in (401, 403):
            self.by_credentials[key] = status, credentials.look_swapped, self._clock()
        # Usually empty, so that an accepted call costs one test.
        elif self.by_credentials and status < 400:
            self.by_credentials.pop(key, None)

    def count_refused(self, environment: str) -> int:
        return len(self._list_refusals(environment))

    def describe_problem(self, environment: str) -> str | None:
        """Returns one line for operators; None if no credentials are refused."""
        refusals = self._list_refusals(environment)
        if not refusals:
            return None
        count = len(refusals)
        subject = f"{count} merchant{'s' if count > 1 else ''}"
        if all(status == 403 for status, _ in refusals):
            return (
                f"the service denies access (403) for the gateway's credentials of {subject}, and "
                "their clients are refused; check the access key's permissions and the service's "
                "allow-list"
            )
        hint = (
            "access_key and secret_key look swapped"
            if any(look_swapped for _, look_swapped in refusals)
            else "run `payout-gateway doctor`"
        )
        return (
            f"the service refuses the gateway's credentials of {subject} (401), and their clients "
            f"are refused; {hint}"
        )

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
