"""Selects the service that answers a request.

Requests of keys and groups in mode ``forward``, and requests about batches created at the legacy
service, are forwarded unchanged to ``legacy_base_url`` with the client's own API key.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.auth.keys import ApiKey
from gateway.config.settings import Comparing
from gateway.http.responses import PassedResponse
from gateway.migration.forwarding import InboundRequest, Sender, Sent, Writes
from gateway.migration.modes import Modes, find_mode_group
from gateway.storage.mode_rows import COMPARE, FORWARD, TRANSLATE
from gateway.writes.batch_routing import BatchRouting, DecidedOtherwise
from gateway.writes.player import Caller
from mappings import errors
from mappings.grammar import Failure, Invalid, Operation, Problem, Record, Unreachable

BOTH_SIDES = Problem(
    "invalid_field",
    "Some of these batches are at one service and some at another; delete them separately.",
    "ids",
)
NO_ADDRESS = "legacy_base_url is not set: give it in the configuration, or switch to translate"


class Forwarding:
    def __init__(
        self,
        modes: Modes,
        begun: BatchRouting,
        sender: Sender,
        writes: Writes,
        comparing: Comparing,
    ) -> None:
        self._modes = modes
        self._begun = begun
        self._sender = sender
        self._writes = writes
        self._answers_compared = comparing.answers == "legacy"

    @property
    def any(self) -> bool:
        """Whether any tenant was ever switched."""
        return self._modes.any

    def is_switched(self, key: ApiKey, operation: Operation) -> bool:
        """Whether the key's mode forwards the operation to the legacy service."""
        mode = self._modes.of(key, find_mode_group(operation))
        return mode == FORWARD or (mode == COMPARE and self._answers_compared)

    def is_translated(self, key: ApiKey, operation: Operation) -> bool:
        """Whether the key's mode for the operation is ``translate``."""
        return self._modes.of(key, find_mode_group(operation)) == TRANSLATE

    def concerns(self, caller: Caller | None) -> bool:
        """Whether a request of this caller may have to be forwarded or compared."""
        return caller is not None and self._modes.has(caller.key.owner)

    async def answer(self, came: InboundRequest) -> Sent | None:
        """Returns the legacy service's answer; None if the request is to be translated.

        Raises DecidedOtherwise if another request has just decided otherwise; call it again then.
        """
        if not await self._goes_there(came):
            return None
        if not self._sender.has(came.caller.key.environment):
            raise Unreachable(NO_ADDRESS)
        came.told.setdefault("mode", FORWARD)
        try:
            sent = await self._writes.answer(came) if came.writes else await self._read(came)
        except DecidedOtherwise:
            del came.told["mode"]
            raise
        if sent is None and came.told["mode"] == FORWARD:
            del came.told["mode"]
        return sent

    async def placing(self, came: InboundRequest) -> Sequence[Record]:
        """Loads the records that a translated write checks in its first transaction: that no other
        request has assigned its batches to a service meanwhile.
        """
        return await self._begun.nowhere(came.caller.key.owner, came.batches if came.writes else [])

    async def _read(self, came: InboundRequest) -> Sent | None:
        carried = await self._sender.sent(came)
        return None if _names_any_payment(came) and carried.status == 404 else Sent(carried)

    async def instead(self, came: InboundRequest, failure: Failure) -> PassedResponse | None:
        """Fetches the legacy service's answer about a payment that the current service lacks."""
        if not (_names_any_payment(came) and errors.translate_failure(failure).status == 404):
            return None
        if not self._sender.has(came.caller.key.environment):
            return None
        carried = await self._sender.sent(came)
        if carried.status != 200:
            return None
        came.told.setdefault("mode", FORWARD)
        return carried

    async def _goes_there(self, came: InboundRequest) -> bool:
        key = came.caller.key
        switched = self.is_switched(key, came.operation)
        if find_mode_group(came.operation) != "batches" or not (batches := came.batches):
            return switched
        # A batch without a recorded service is at the one that the mode selects.
        wanted = "legacy" if switched else "current"
        sides = {await self._begun.side(key.owner, one) or wanted for one in batches}
        if len(sides) > 1:
            # One request cannot be split: a failure of one part could not be reported.
            raise Invalid(BOTH_SIDES)
        return sides == {"legacy"}

    # Comparing

    async def compares(self, came: InboundRequest) -> bool:
        """Whether a request is also sent to the other service: a read of data that both may have."""
        key, group = came.caller.key, find_mode_group(came.operation)
        if came.writes or self._modes.of(key, group) != COMPARE:
            return False
        if not self._sender.has(key.environment):
            return False
        # The legacy service does not have batches that were created at the current one.
        batches = came.batches if group == "batches" else []
        return "current" not in {await self._begun.side(key.owner, one) for one in batches}

    async def read(self, came: InboundRequest) -> PassedResponse:
        """Fetches the legacy service's answer to a read; raises Unreachable."""
        return await self._sender.sent(came)


def _names_any_payment(came: InboundRequest) -> bool:
    # It names no batch, so either service may have the payment.
    return came.operation.name == "read_any_payment"
