"""Inferred operations: paths that the current document does not list, and may be there all the same.

A service that is briefly broken, a page of something in front of it, or an id that is wrong must not send
a batch the long way round, nor shorten a list. So a path is only taken not to exist if it is refused twice
and a documented read is answered right before and right after the second refusal: for an edit one that
shows the very object (contract of the translation, section 5).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.upstream.signed_target import Learned
from mappings.current import SUMMARY, find_endpoint
from mappings.grammar import JSON, Call, Failure, NoSuchOperation, Refused, Unreachable
from mappings.payment_lists import extract_batch, extract_payments

MISSING_SECONDS = 600
LONGEST_MISSING_SECONDS = 86_400
"""For how long a path is not tried again: at first, and doubled each time it is confirmed, at most."""

LACKING = frozenset({404, 405, 501})

Make = Callable[[Call], Awaitable[JSON]]

log = structlog.get_logger()


class InferredOperations:
    """``learned`` is what all processes on one database know, each a second late at most."""

    def __init__(
        self,
        mode: Literal["auto", "use", "avoid"],
        learned: Learned,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._mode = mode
        self._learned = learned
        self._clock = clock

    async def call(self, call: Call, environment: str, make: Make) -> JSON:
        """Makes the call; NoSuchOperation if the service does not have the operation.

        A list that the service gave before is never replaced by the ledger's for a refusal: that would
        leave out what was made elsewhere. Unreachable then, until it answers or `doctor` is run.
        """
        if lacking := self.lacks(call, environment):
            raise NoSuchOperation(lacking)
        try:
            return await self.try_now(call, environment, make)
        except NoSuchOperation as missing:
            if self._is_known_list(call, environment):
                raise Unreachable(_NOT_SHORTENED.format(path=call.path)) from missing
            await self._learn(environment, _name(call), present=False)
            raise

    async def try_now(self, call: Call, environment: str, make: Make) -> JSON:
        """Makes the call, whatever is known; NoSuchOperation, which is not remembered yet, if it is missing."""
        try:
            body = await make(call)
        except Refused as refused:
            if not self._may_be_missing(refused):
                raise
            body = await self._confirm(call, refused, make)
        await self._learn(environment, _name(call), present=True)
        return body

    async def find_out(self, call: Call, environment: str, make: Make) -> bool:
        """Whether the service has the operation, tried now and remembered for every process.

        For an operator who asks: also a list that was there before is taken not to exist then.
        Raises the failure if it cannot be told.
        """
        try:
            await self.try_now(call, environment, make)
        except NoSuchOperation:
            await self._learn(environment, _name(call), present=False)
            return False
        return True

    def confirms(self, status: int) -> bool:
        """Whether reads are made to tell if a response of this status is about the path."""
        return self._mode == "auto" and status in LACKING

    def lacks(self, call: Call, environment: str) -> str | None:
        """The operation's name, if the service is known not to have it."""
        name = _name(call)
        known = self._learned.get(environment, name)
        is_missing = self._mode == "auto" and self._clock() < missing_until(known)
        return name if self._mode == "avoid" or is_missing else None

    def _is_known_list(self, call: Call, environment: str) -> bool:
        known = self._learned.get(environment, _name(call))
        return call.reads and bool(known and known["present"])

    def _may_be_missing(self, refused: Refused) -> bool:
        if self._mode == "use" or refused.status not in LACKING:
            return False
        # Where the body names a field, what that names is not found; the path is there.
        return not any(problem.field for problem in refused.problems)

    async def _confirm(self, call: Call, first: Refused, make: Make) -> JSON:
        """The body, if the second try is taken; NoSuchOperation if it is refused like the first."""
        await _see(call, first, make)
        try:
            return await make(call)
        except Refused as refused:
            if not self._may_be_missing(refused):
                raise
            second = refused
        await _see(call, second, make)
        raise NoSuchOperation(_name(call)) from second

    async def _learn(self, environment: str, name: str, *, present: bool) -> None:
        known: Any = self._learned.get(environment, name)
        now = int(self._clock())
        found: dict[str, Any] = {"present": present, "at": now}
        if present:
            if known and known["present"]:
                return
            log.info(
                "inferred_operation_found",
                environment=environment,
                endpoint=name.removeprefix("inferred "),
            )
        else:
            if now < missing_until(known):
                return  # another request has found it out at the same time
            found["seconds"] = _next_seconds(known)
            log.warning(
                "inferred_operation_missing",
                environment=environment,
                endpoint=name.removeprefix("inferred "),
                retry_after_seconds=found["seconds"],
                reason="the service refused it twice as an unknown path; documented calls are used instead",
            )
        try:
            await self._learned.put(environment, name, found)
        except Exception as error:  # noqa: BLE001 - the answer in hand is worth more than this
            log.warning("capability_not_saved", name=name, **{"error.type": type(error).__name__})


def missing_until(known: Mapping[str, Any] | None) -> float:
    """Until when (Unix time) a path is taken not to exist; 0 if it is not."""
    if not known or known["present"]:
        return 0
    return float(known["at"] + known.get("seconds", MISSING_SECONDS))


def describe_endpoint(known: Mapping[str, Any]) -> str:
    """What is known of a path, for an operator: whether it is there, or when it is tried again."""
    if known["present"]:
        return "there"
    again = datetime.fromtimestamp(missing_until(known), UTC)
    return f"not there, tried again when needed from {again:%Y-%m-%d %H:%M} UTC on"


_NOT_SHORTENED = (
    "GET {path} is refused as if the service had no such path, and it had it before: the list is not "
    "made from the ledger, which may lack batches made elsewhere. See what answers in front of the "
    "service; if it has the path no longer, run `payout-gateway doctor`"
)


def _next_seconds(known: Mapping[str, Any] | None) -> int:
    if not known or known["present"]:
        return MISSING_SECONDS
    return min(2 * int(known.get("seconds", MISSING_SECONDS)), LONGEST_MISSING_SECONDS)


def _name(call: Call) -> str:
    endpoint = find_endpoint(call.method, call.path)
    return f"inferred {endpoint.method} {endpoint.path}"


async def _see(call: Call, refused: Refused, make: Make) -> None:
    """A documented read that shows what the call names, or for a list that the service answers.

    Raises ``refused`` if the service says that the object is gone, and Unreachable if it says nothing
    that can be believed: a client that was told 404 would take what it names for gone.
    """
    batch, *payments = call.witness or ("",)
    read = Call("GET", SUMMARY.format(id=batch)) if batch else _ANY_READ
    try:
        body = await make(read)
    except Failure as failure:
        if isinstance(failure, Refused):
            if batch and failure.status == 404 and failure.problems:
                raise refused from None  # the service's own words: no page of something before it
            if failure.status in (401, 403, 429):
                raise
        raise Unreachable("it cannot be seen whether it was refused for the path's sake") from None
    if batch and extract_batch(body).get("id", batch) != batch:
        raise Unreachable("its batch is not in sight")
    if payments and not await run_in_thread_if(json_codec.has_rows(body), _shows, body, payments):
        raise refused


_ANY_READ = Call("GET", "/recipients", query={"page": "1", "pageSize": "1"})
"""Answered by every service (current interface, 4.1)."""


def _shows(summary: JSON, payments: Sequence[str]) -> bool:
    return {*payments} <= {payment.get("id") for payment in extract_payments(summary)}
