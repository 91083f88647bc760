"""Optional endpoints: paths that the current document does not list but the service may have.

An outage, an error page of a proxy or a wrong id must not make the gateway take the longer
documented way, or shorten a list. So a path counts as missing only if it is refused twice, and a
documented read succeeds right before and right after the second refusal; for an edit, a read that
shows the object (contract, section 5).
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
"""How long a missing path is not tried again: at first, and at most; doubled when confirmed."""

LACKING = frozenset({404, 405, 501})

Make = Callable[[Call], Awaitable[JSON]]

log = structlog.get_logger()


class InferredOperations:
    """Sends calls to optional endpoints, and remembers which ones are missing.

    All processes on one database share ``capabilities``, with a delay of at most a second.
    """

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
        """Sends a call; raises NoSuchOperation if the service does not have the operation.

        A list that the service has answered before is not replaced by the recorded one, which
        would lack objects created elsewhere: raises Unreachable until the service answers again
        or an operator runs `doctor`.
        """
        if lacking := self.lacks(call, environment):
            raise NoSuchOperation(lacking)
        try:
            return await self.try_now(call, environment, make)
        except NoSuchOperation as missing:
            # A list that existed before: a shortened one could make a client pay twice.
            if self._is_known_list(call, environment):
                raise Unreachable(_NOT_SHORTENED.format(path=call.path)) from missing
            await self._learn(environment, _name(call), present=False)
            raise

    async def try_now(self, call: Call, environment: str, make: Make) -> JSON:
        """Sends a call whatever is remembered.

        Raises NoSuchOperation if the operation is missing, without remembering that.
        """
        try:
            body = await make(call)
        except Refused as refused:
            if not self._may_be_missing(refused):
                raise
            body = await self._confirm(call, refused, make)
        await self._learn(environment, _name(call), present=True)
        return body

    async def find_out(self, call: Call, environment: str, make: Make) -> bool:
        """Tries a call now, and remembers for all processes whether the operation exists.

        For operators: also a list that existed before may count as missing then. Raises the
        failure if it is inconclusive.
        """
        try:
            await self.try_now(call, environment, make)
        except NoSuchOperation:
            await self._learn(environment, _name(call), present=False)
            return False
        return True

    def confirms(self, status: int) -> bool:
        """Whether a response with this status is followed by reads, to tell if the path is missing."""
        return self._mode == "auto" and status in LACKING

    def lacks(self, call: Call, environment: str) -> str | None:
        """Returns the operation's name if the service is known not to have it."""
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
        # A problem with a field is about an object in the body, so the path exists.
        return not any(problem.field for problem in refused.problems)

    async def _confirm(self, call: Call, first: Refused, make: Make) -> JSON:
        """Sends the call again; raises NoSuchOperation if it is refused like the first time."""
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
            # Already known: no need to write it again.
            if known and known["present"]:
                return
            log.info(
                "inferred_operation_found",
                environment=environment,
                endpoint=name.removeprefix("inferred "),
            )
        else:
            if now < missing_until(known):
                return  # a concurrent request has found the same
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
        except Exception as error:  # noqa: BLE001 - the client's answer matters more than this
            log.warning("capability_not_saved", name=name, **{"error.type": type(error).__name__})


def missing_until(known: Mapping[str, Any] | None) -> float:
    """Returns until when (Unix time) a path counts as missing; 0 if it does not."""
    if not known or known["present"]:
        return 0
    return float(known["at"] + known.get("seconds", MISSING_SECONDS))


def describe_endpoint(known: Mapping[str, Any]) -> str:
    """Describes for operators whether a path exists, or when it is tried again."""
    if known["present"]:
        return "there"
    again = datetime.fromtimestamp(missing_until(known), UTC)
    return f"not there; tried again when needed after {again:%Y-%m-%d %H:%M} UTC"


_NOT_SHORTENED = (
    "GET {path} is refused as if the path did not exist, but it existed before: the list is not built "
    "from the gateway's own records, which may lack batches created elsewhere. Check what is in front "
    "of the service; if the service no longer has the path, run `payout-gateway doctor`"
)


def _next_seconds(known: Mapping[str, Any] | None) -> int:
    if not known or known["present"]:
        return MISSING_SECONDS
    return min(2 * int(known.get("seconds", MISSING_SECONDS)), LONGEST_MISSING_SECONDS)


def _name(call: Call) -> str:
    endpoint = find_endpoint(call.method, call.path)
    return f"inferred {endpoint.method} {endpoint.path}"


async def _see(call: Call, refused: Refused, make: Make) -> None:
    """Checks with a documented read that the object of a call exists; for a list, any read.

    Raises the refusal if the service confirms that the object does not exist. Raises Unreachable
    if the read is inconclusive: after a 404, a client would take the object for deleted.
    """
    batch, *payments = call.witness or ("",)
    read = Call("GET", SUMMARY.format(id=batch)) if batch else _ANY_READ
    try:
        body = await make(read)
    except Failure as failure:
        if isinstance(failure, Refused):
            if batch and failure.status == 404 and failure.problems:
                raise refused from None  # an error of the service itself, not a proxy's page
            # Says something about the credentials or the limit, not about the object.
            if failure.status in (401, 403, 429):
                raise
        raise Unreachable("cannot tell whether the path or the request was refused") from None
    if batch and extract_batch(body).get("id", batch) != batch:
        raise Unreachable("the service's summary does not show the batch")
    if payments and not await run_in_thread_if(json_codec.has_rows(body), _shows, body, payments):
        raise refused


_ANY_READ = Call("GET", "/recipients", query={"page": "1", "pageSize": "1"})
"""A read that every service answers (current interface, section 4.1)."""


def _shows(summary: JSON, payments: Sequence[str]) -> bool:
    return {*payments} <= {payment.get("id") for payment in extract_payments(summary)}
