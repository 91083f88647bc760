"""Selects the service that answers a request.

Requests of keys and groups in mode ``forward``, and requests about batches created at the legacy
service, are forwarded unchanged to ``legacy_base_url`` with the client's own API key.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.auth.keys import ApiKey
from gateway.config.settings import Comparing
from gateway.http.responses import LegacyResponse, PassedResponse
from gateway.migration.forwarding import (
    NO_LEGACY_ADDRESS,
    ForwardedAnswer,
    ForwardedWrite,
    LegacySender,
    is_not_found,
    parse_problems,
)
from gateway.migration.inbound_request import InboundRequest, parse_fields
from gateway.migration.modes import Modes, find_mode_group
from gateway.observability.access_log import describe_problems
from gateway.storage.mode_rows import COMPARE, FORWARD, TRANSLATE
from gateway.writes.batch_routing import BatchRoutedElsewhereError, BatchRouting
from gateway.writes.idempotency import IdempotencyGuard
from mappings import errors
from mappings.current import ID_PATTERN
from mappings.effects import Answer, CompareAndSet, Operation
from mappings.failures import Failure, Invalid, Problem, Unreachable

BATCHES_AT_BOTH_SERVICES = Problem(
    "invalid_field",
    "Some of these batches are at one service and some at another; delete them separately.",
    "ids",
)


@dataclass(slots=True)
class ServiceRouter:
    modes: Modes
    _batch_routing: BatchRouting
    sender: LegacySender
    _idempotency_guard: IdempotencyGuard
    _comparing: Comparing

    def is_forwarded(self, key: ApiKey, operation: Operation) -> bool:
        """Whether the key's mode forwards the operation to the legacy service."""
        # In mode ``compare`` the configuration says whose answer clients get.
        mode = self.modes.find_mode_of_key(key, find_mode_group(operation))
        return mode == FORWARD or (mode == COMPARE and self._comparing.answers == "legacy")

    def is_translated(self, key: ApiKey, operation: Operation) -> bool:
        """Whether the key's mode for the operation is ``translate``."""
        return self.modes.find_mode_of_key(key, find_mode_group(operation)) == TRANSLATE

    async def forward_if_routed_to_legacy(self, inbound: InboundRequest) -> ForwardedAnswer | None:
        """Returns the legacy service's answer; None if the request is to be translated.

        Raises BatchRoutedElsewhereError if another request has just assigned a batch to a service;
        the caller selects again then.
        """
        if not await self._is_routed_to_legacy(inbound):
            return None
        if not self.sender.has_environment(inbound.caller.key.environment):
            raise Unreachable(NO_LEGACY_ADDRESS)
        inbound.log_fields.setdefault("mode", FORWARD)
        try:
            if inbound.is_write:
                write = ForwardedWrite(inbound, self.sender, self._batch_routing)
                answer = await write.execute_or_replay(self._idempotency_guard)
            else:
                response = await self.sender.forward(inbound)
                is_unknown = _is_batchless_payment_read(inbound) and response.status == 404
                answer = None if is_unknown else ForwardedAnswer(response)
        except BatchRoutedElsewhereError:
            del inbound.log_fields["mode"]
            raise
        if answer and answer.response.status >= 400:
            fields = await parse_fields(answer.response.body)
            inbound.log_fields.update(describe_problems(parse_problems(fields)))
        # A retry of a translated write, or a payment that the legacy service lacks, is translated.
        if answer is None and inbound.log_fields["mode"] == FORWARD:
            del inbound.log_fields["mode"]
        return answer

    async def load_routing_checks(
        self, inbound: InboundRequest, _operation_id: str
    ) -> Sequence[CompareAndSet]:
        """Loads the records that a translated write checks in its first transaction.

        They ensure that no other request has assigned its batches to a service in the meantime.
        """
        return await self._batch_routing.build_not_routed_to_legacy_checks(
            inbound.caller.key.tenant, inbound.batches if inbound.is_write else []
        )

    async def rebuild_forwarded_response(
        self, inbound: InboundRequest, answer: Answer
    ) -> LegacyResponse:
        """Builds the response to a write that was forwarded, for a retry that is translated.

        Raises Unknown if the legacy service cannot be read.
        """
        return await ForwardedWrite(inbound, self.sender, self._batch_routing).build_response(
            answer
        )

    async def fetch_legacy_fallback_response(
        self, inbound: InboundRequest, failure: Failure
    ) -> PassedResponse | None:
        """Fetches the legacy service's answer about a payment missing at the current service."""
        is_unknown = errors.translate_failure(failure).status == 404
        has_legacy = self.sender.has_environment(inbound.caller.key.environment)
        if not (is_unknown and has_legacy and _is_batchless_payment_read(inbound)):
            return None
        # The failure of the current service is a better answer than a failure of the legacy one.
        response = await self.sender.forward(inbound)
        if response.status != 200:
            return None
        inbound.log_fields.setdefault("mode", FORWARD)
        return response

    async def _is_routed_to_legacy(self, inbound: InboundRequest) -> bool:
        key = inbound.caller.key
        is_forwarded = self.is_forwarded(key, inbound.operation)
        if find_mode_group(inbound.operation) != "batches" or not (batches := inbound.batches):
            return is_forwarded
        # The client has the response of a forwarded create, also if its commit failed.
        await self._idempotency_guard.reconciler.save_unsaved_forwarded_outcomes(key.tenant)
        services = {
            await self._batch_routing.find_backend(key.tenant, batch)
            # A batch without a recorded service is at the one that the mode selects.
            or (
                "legacy"
                if is_forwarded or await self._is_unrecorded_at_legacy(inbound, batch)
                else "current"
            )
            for batch in batches
        }
        if len(services) > 1:
            # One request cannot be split: a failure of one part could not be reported.
            raise Invalid(BATCHES_AT_BOTH_SERVICES)
        return services == {"legacy"}

    async def _is_unrecorded_at_legacy(self, inbound: InboundRequest, batch: str) -> bool:
        """Whether the legacy service has a batch that another process has not recorded.

        A client has the response of a forwarded create before it is saved, and the mode may be
        switched then; a response may also be lost.
        """
        tenant, reconciler = inbound.caller.key.tenant, self._idempotency_guard.reconciler
        if not (
            self.sender.has_environment(tenant.environment)
            # The body of a bulk deletion may name anything.
            and re.fullmatch(ID_PATTERN, batch)
            and await reconciler.may_have_forwarded_unrecorded_batch(tenant)
        ):
            return False
        response = await self.sender.read(inbound, f"/v1/batches/{batch}")
        if response.status != 200 and not await is_not_found(response):
            raise Unreachable("the legacy service does not say whether it has the batch")
        return response.status == 200

    # Comparing

    async def is_compared(self, inbound: InboundRequest) -> bool:
        """Whether the other service gets the request too: a read of data that both may have."""
        key, group = inbound.caller.key, find_mode_group(inbound.operation)
        if inbound.is_write or self.modes.find_mode_of_key(key, group) != COMPARE:
            return False
        if not self.sender.has_environment(key.environment):
            return False
        # The legacy service does not have batches that were created at the current one.
        batches = inbound.batches if group == "batches" else []
        return "current" not in {
            await self._batch_routing.find_backend(key.tenant, batch) for batch in batches
        }

    async def lists_unknown_batches(
        self, inbound: InboundRequest, response: PassedResponse
    ) -> bool:
        """Whether the legacy service lists payments of batches that are not imported yet.

        The gateway lists the payments of the batches that it knows, so the answers cannot be equal.
        """
        if inbound.operation.name != "list_payments":
            return False
        rows = (await parse_fields(response.body)).get("payments") or []
        # A service may show payments without their batches.
        found_ids = ((row.get("batch") or {}).get("id") for row in rows)
        batch_ids = {str(id_) for id_ in found_ids if id_}
        tenant = inbound.caller.key.tenant
        return not all(
            [await self._batch_routing.is_recorded(tenant, batch_id) for batch_id in batch_ids]
        )


def _is_batchless_payment_read(inbound: InboundRequest) -> bool:
    # The request names no batch, so either service may have the payment.
    return inbound.operation.name == "read_any_payment"
