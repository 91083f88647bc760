"""Inferred operations: paths that the current document does not list, and may be there all the same.

That the service lacks one is only believed when the very object can be seen in a summary and a
second try is refused the same way: a service that is briefly broken, or an id that is wrong, must
not send a batch the long way round for a day.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import structlog

from gateway import wire
from gateway.aside import aside_if
from gateway.upstream.signed_target import Learned
from mappings.current import SUMMARY, endpoint_of
from mappings.grammar import JSON, Call, Failure, NoSuchOperation, Refused, Unreachable
from mappings.payment_lists import payments_in

A_DAY = 86_400
LACKING = frozenset({404, 405, 501})

Make = Callable[[Call], Awaitable[JSON]]

log = structlog.get_logger()


class InferredOperations:
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
        """Makes the call; NoSuchOperation where the service does not have the operation."""
        if lacking := self.lacks(call, environment):
            raise NoSuchOperation(lacking)
        name = _name(call)
        try:
            body = await make(call)
        except Refused as refused:
            if self._mode == "use" or refused.status not in LACKING:
                raise
            if any(problem.field for problem in refused.problems):
                raise  # what the body names is not found; the path is there
            if not await _visible(call, make):
                raise
            body = await self._again(call, refused, environment, name, make)
        await self._learn(environment, name, present=True)
        return body

    def lacks(self, call: Call, environment: str) -> str | None:
        """The operation's name, where the service is known not to have it."""
        name = _name(call)
        absent = self._mode == "auto" and self._is_absent(environment, name)
        return name if self._mode == "avoid" or absent else None

    async def _again(
        self, call: Call, first: Refused, environment: str, name: str, make: Make
    ) -> JSON:
        try:
            return await make(call)
        except Refused as second:
            if second.status != first.status:
                raise
        await self._learn(environment, name, present=False)
        raise NoSuchOperation(name)

    def _is_absent(self, environment: str, name: str) -> bool:
        known: Any = self._learned.get(environment, name)
        return bool(known) and not known["present"] and self._clock() - known["at"] < A_DAY

    async def _learn(self, environment: str, name: str, *, present: bool) -> None:
        known: Any = self._learned.get(environment, name)
        if known and known["present"] == present and present:
            return
        log.info("inferred_operation", environment=environment, operation=name, present=present)
        try:
            now = int(self._clock())
            await self._learned.put(environment, name, {"present": present, "at": now})
        except Exception as error:  # noqa: BLE001 - the answer in hand is worth more than this
            log.warning("not_remembered", what=name, error=type(error).__name__)


def _name(call: Call) -> str:
    endpoint = endpoint_of(call.method, call.path)
    return f"inferred {endpoint.method} {endpoint.path}"


async def _visible(call: Call, make: Make) -> bool:
    """Whether the batch, and the payment, that a call names can be seen the documented way."""
    if not call.witness:
        return True
    batch, *payments = call.witness
    try:
        body = await make(Call("GET", SUMMARY.format(id=batch)))
    except Failure as failure:
        status = failure.status if isinstance(failure, Refused) else 0
        if status == 404:
            return False
        if status in (401, 403, 429):
            raise
        # A client that was told 404 would take what it names for gone.
        raise Unreachable("it cannot be seen whether it was refused for the path's sake") from None
    return not payments or await aside_if(wire.has_rows(body), _shows, body, payments)


def _shows(summary: JSON, payments: Sequence[str]) -> bool:
    return {*payments} <= {payment.get("id") for payment in payments_in(summary)}
