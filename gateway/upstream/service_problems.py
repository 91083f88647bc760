"""Remembers what keeps the service from serving the gateway, for operators.

A refusal concerns the gateway's own credentials (or its address), although the client is the one
that sees an error: its API key is valid. A service that answers with errors does not open the
circuit breaker, because it responds.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from gateway.auth.signing import SWAPPED_HINT, Credentials
from gateway.observability.plurals import join_names, pluralize
from gateway.upstream.optional_endpoints import MISSING_STATUSES

FORGET_SECONDS = 600.0
"""Refusals are forgotten after this time, if no request repeats them."""

FAILURES_IN_A_ROW = 3
FAILURE_SECONDS = 120.0
"""Failures are forgotten after this time: twice the longest pause of the reconciler's reads."""


REFUSAL = "the service refuses the gateway"


class Refusal(NamedTuple):
    """The last refusal of a merchant's credentials."""

    merchant: str
    status: int
    look_swapped: bool


class ServiceProblems:
    """The refused credentials and the failures of each environment, until a call succeeds.

    Reads and writes are counted separately: a service may answer one kind only.
    """

    def __init__(self) -> None:
        self.by_credentials: dict[tuple[str, str], tuple[Refusal, float]] = {}
        self.failures: dict[tuple[str, bool], tuple[int, float]] = {}

    def record_failure(self, environment: str, *, is_write: bool) -> None:
        """Records a call with a 5xx, or without an answer or a readable one."""
        count, _ = self.failures.get((environment, is_write), (0, 0.0))
        self.failures[environment, is_write] = count + 1, time.monotonic()

    def record_answer(
        self,
        environment: str,
        credentials: Credentials,
        method: str,
        status: int,
        body: bytes,
    ) -> None:
        """Records an answer to a signed call. 403: the signature is fine, and access is denied."""
        is_write = method != "GET"
        # A page, of a proxy or of another server at this address, is no refusal of the service.
        is_page = status not in (401, 403) and not body.lstrip().startswith(b"{")
        # That of an edit at a service without edit paths shows nothing.
        if is_page and method in ("PATCH", "DELETE") and status in MISSING_STATUSES:
            return
        if status >= 500 or (status >= 300 and is_page):
            self.record_failure(environment, is_write=is_write)
            return
        self.failures.pop((environment, is_write), None)
        key = environment, credentials.access_key
        if status in (401, 403):
            refusal = Refusal(credentials.merchant, status, credentials.look_swapped)
            self.by_credentials[key] = refusal, time.monotonic()
        # Usually empty, so that an accepted call costs one test.
        elif self.by_credentials and status < 400:
            self.by_credentials.pop(key, None)

    def forget_refusals(self, _changed_keys: object) -> None:
        """Listens to changes of keys: credentials that were replaced are never accepted again.

        What is still refused is recorded again with the next request.
        """
        self.by_credentials.clear()

    def describe_problem(self, environment: str) -> str | None:
        """Returns one line that names nobody; None if the service serves the gateway."""
        if refusals := self.map_refusals_by_environment().get(environment):
            return describe_refusals(refusals, pluralize(len(refusals), "merchant"))
        since = time.monotonic() - FAILURE_SECONDS
        for kind, is_write in (("reads", False), ("writes", True)):
            count, last_at = self.failures.get((environment, is_write), (0, 0.0))
            if count >= FAILURES_IN_A_ROW and last_at >= since:
                return (
                    f"the service is failing: its last {count} {kind} got an error (5xx), no answer "
                    "or one that is not JSON, and clients get 500"
                )
        return None

    def map_refusals_by_environment(self) -> dict[str, list[Refusal]]:
        now = time.monotonic()
        self.by_credentials = {
            key: (refusal, refused_at)
            for key, (refusal, refused_at) in self.by_credentials.items()
            if now - refused_at < FORGET_SECONDS
        }
        refusals = defaultdict(list)
        for (environment, _), (refusal, _) in self.by_credentials.items():
            refusals[environment].append(refusal)
        return dict(refusals)


def describe_refusals(refusals: Sequence[Refusal], merchants: str = "") -> str:
    """Describes refusals in one line; names the merchants unless ``merchants`` stands for them."""
    merchants = merchants or join_names({refusal.merchant for refusal in refusals})
    if all(refusal.status == 403 for refusal in refusals):
        return (
            f"{REFUSAL}: it denies access (403) for the credentials of {merchants}, and their clients "
            "are refused; check the access key's permissions and the service's allow-list"
        )
    hint = "run `payout-gateway doctor`"
    if any(refusal.look_swapped for refusal in refusals):
        hint = SWAPPED_HINT
    return (
        f"{REFUSAL}: the credentials of {merchants} are not accepted (401), and their clients are "
        f"refused; {hint}"
    )
