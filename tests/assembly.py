"""The parts of a gateway that translate requests and carry out writes, assembled without a server.

Tests of internals use the parts one by one; ``GatewayParts.answer_request`` executes a whole legacy request in
process, with any object that has the ``send`` method of the HTTP client in place of the service.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from multidict import CIMultiDict

from gateway.admission.load import AdmissionSlot, LoadShedder
from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.http.request import HeaderFields, HttpRequest
from gateway.http.request_reader import generate_hex_id
from gateway.http.responses import LegacyResponse
from gateway.legacy_api.codec import LegacyCodec
from gateway.legacy_api.request_context import LegacyClient, RequestContext
from gateway.legacy_api.routes import Routes
from gateway.payloads import json_codec
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import RecipientCaches
from gateway.storage import ObjectStateStore, Store, Tenant, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.capability_cache import CapabilityCache, load_capabilities
from gateway.storage.operations import OperationRepository
from gateway.upstream.client import open_upstream_client
from gateway.upstream.clock import ServiceClock
from gateway.upstream.http_connection import Fence, Reply
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.executor import FlowExecutor
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.instance_leases import InstanceLeases
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.reconciler import WriteReconciler
from gateway.writes.write_request import Caller, WriteRequest
from mappings import errors
from mappings.effects import Answer
from mappings.failures import Failure, Invalid
from tests.state import KEY, create_database

WAIT_SECONDS = 1

Exchange = Callable[[str, str, bytes | None], tuple[int, str, dict[str, str]]]
"""Method, target and body of a call to status, body and headers of its response."""


class InProcessUpstream:
    """Replaces the HTTP client: a function returns the response to each call."""

    timeout_seconds = 0.5  # as long as a request waits for another

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send(
        self,
        _environment: str,
        _credentials: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
        fence: Fence | None = None,
    ) -> Reply:
        if fence and not fence.is_fence_recent:
            await fence.verify_fence()
        status, text, headers = self._exchange(method, target, body)
        return Reply(status, [(n.encode(), v.encode()) for n, v in headers.items()], text.encode())


@dataclass
class GatewayParts:
    store: Store
    object_states: ObjectStateStore
    journal: Journal
    executor: FlowExecutor
    reconciler: WriteReconciler
    guard: IdempotencyGuard
    ids: AliasIds

    async def answer_request(
        self, settings: Settings, tenant: Tenant, method: str, target: str, body: Any = None
    ) -> LegacyResponse:
        """The response to a client of this tenant, after authentication and rate limits.

        Fails for a float, a date or a key that is not text, which the gateway would encode somehow.
        """
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"X-API-Key": KEY["api_key"]}
        if data:
            headers["Content-Type"] = "application/json"
        request = HttpRequest(method, target, HeaderFields(CIMultiDict(headers)))
        codec = LegacyCodec(settings, self.ids, time.time)
        context = RequestContext(
            generate_hex_id(),
            asyncio.get_running_loop().time(),
            LegacyClient(None, None, api_key=KEY["api_key"]),
        )
        context.slot = AdmissionSlot(LoadShedder(settings.load), str(tenant))

        async def build_response(answer: Answer) -> LegacyResponse:
            json_codec.dumps(answer.body)
            return await codec.build_response(context, answer)

        async def build_failure(failure: Failure) -> LegacyResponse:
            json_codec.dumps(errors.translate_failure(failure).build_body())
            return await codec.build_failure_response(context, failure)

        try:
            path = target.partition("?")[0]
            match = Routes(settings.vocabulary.build_vocabulary()).match(path)
            operation = match.route.operations.get(method) if match else None
            if match is None or operation is None:
                raise Invalid(errors.NOT_FOUND)
            context.operation = operation
            if not operation.is_keyless:
                context.caller = Caller(_api_key(tenant), context.request_id)
            values = await codec.decode_and_validate_body(request, context, data)
            legacy_request = await codec.build_request(request, context, match.ids, values)
            if context.caller is None or not operation.is_write:
                flow = operation.flow(legacy_request)
                result = await self.executor.execute(flow, context.caller, legacy_request.problems)
                return await build_response(result)
            write_request = WriteRequest(
                operation, legacy_request, context.caller, None, legacy_request.problems
            )
            return (await self.guard.answer(write_request, build_response, build_failure))[0]
        except Failure as failure:
            return await build_failure(failure)
        finally:
            context.slot.release()


def _api_key(tenant: Tenant) -> ApiKey:
    credentials = Credentials(KEY["access_key"], KEY["secret_key"])
    return ApiKey("key", "a key", "", *tenant, credentials, None, ())


def assemble_parts(
    settings: Settings,
    store: Store,
    upstream: Any,
    *,
    clock: ServiceClock | None = None,
    capabilities: CapabilityCache | None = None,
    build_repository: Callable[[Store, ObjectStateStore, Journal], OperationRepository]
    | None = None,
) -> GatewayParts:
    """``build_repository`` replaces the repository of the journal."""
    clock = clock or ServiceClock()
    object_states, ids = ObjectStateStore(store), AliasIds(store, settings.legacy.stand_ins)
    journal = Journal(store, object_states, clock)
    if build_repository:
        repository = build_repository(store, object_states, journal)
        journal.operations = journal.deliveries.operations = repository
    outcome_policy = OutcomePolicy(journal, clock)
    recipient_caches = RecipientCaches(settings.lists)
    executor = FlowExecutor(
        upstream,
        object_states,
        settings.vocabulary.build_vocabulary(),
        OptionalEndpoints(
            settings.upstream.inferred_operations, capabilities or CapabilityCache(store)
        ),
        policy=outcome_policy,
        listing=ListReader(recipient_caches, ids),
    )
    reconciler = WriteReconciler(
        store, journal, executor, outcome_policy, InstanceLeases(store, journal.instance)
    )
    guard = IdempotencyGuard(journal, executor, reconciler, WAIT_SECONDS)
    return GatewayParts(store, object_states, journal, executor, reconciler, guard, ids)


@asynccontextmanager
async def open_gateway_parts(
    settings: Settings,
    build_repository: Callable[[Store, ObjectStateStore, Journal], OperationRepository]
    | None = None,
) -> AsyncIterator[GatewayParts]:
    """Parts in front of a service over HTTP."""
    clock = ServiceClock()
    async with open_store(create_database(settings.state)) as store:
        capabilities = await load_capabilities(store)
        async with open_upstream_client(
            settings, clock=clock, capabilities=capabilities
        ) as upstream:
            yield assemble_parts(
                settings,
                store,
                upstream,
                clock=clock,
                capabilities=capabilities,
                build_repository=build_repository,
            )
