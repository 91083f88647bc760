"""Which requests go to the legacy service as they came, while it lives.

Those of keys and groups that are switched to ``forward``, and those of batches that were begun
there. They go to ``legacy_base_url``, with the client's own API key, and the answer comes back as
it is.
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
        """Whether anything was ever switched."""
        return self._modes.any

    def is_switched(self, key: ApiKey, operation: Operation) -> bool:
        """Whether the key's requests of this kind go to the legacy service."""
        mode = self._modes.of(key, find_mode_group(operation))
        return mode == FORWARD or (mode == COMPARE and self._answers_compared)

    def is_translated(self, key: ApiKey, operation: Operation) -> bool:
        """Whether the legacy service has nothing to do with them."""
        return self._modes.of(key, find_mode_group(operation)) == TRANSLATE

    def concerns(self, caller: Caller | None) -> bool:
        """Whether a request of this caller may be one to pass on."""
        return caller is not None and self._modes.has(caller.key.owner)

    async def answer(self, came: InboundRequest) -> Sent | None:
        """The legacy service's answer; None where the current one's calls are to be made.

        Raises DecidedOtherwise: it is to be asked again.
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
        """What a write by the current service's calls finds with its first change: batches of no mark."""
        return await self._begun.nowhere(came.caller.key.owner, came.batches if came.writes else [])

    async def _read(self, came: InboundRequest) -> Sent | None:
        carried = await self._sender.sent(came)
        return None if _names_any_payment(came) and carried.status == 404 else Sent(carried)

    async def instead(self, came: InboundRequest, failure: Failure) -> PassedResponse | None:
        """The legacy service's answer about a payment that the current one does not know."""
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
        wanted = "legacy" if switched else "current"
        sides = {await self._begun.side(key.owner, one) or wanted for one in batches}
        if len(sides) > 1:
            raise Invalid(BOTH_SIDES)
        return sides == {"legacy"}

    # Comparing

    async def compares(self, came: InboundRequest) -> bool:
        """Whether both services are to be asked: a read of what both may know."""
        key, group = came.caller.key, find_mode_group(came.operation)
        if came.writes or self._modes.of(key, group) != COMPARE:
            return False
        if not self._sender.has(key.environment):
            return False
        batches = came.batches if group == "batches" else []
        return "current" not in {await self._begun.side(key.owner, one) for one in batches}

    async def read(self, came: InboundRequest) -> PassedResponse:
        """The legacy service's answer to a read, whoever answers it; raises Unreachable."""
        return await self._sender.sent(came)


def _names_any_payment(came: InboundRequest) -> bool:
    """It names no batch, so nobody can say at which service it is."""
    return came.operation.name == "read_any_payment"
