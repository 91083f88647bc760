"""Assembles the parts of a gateway: database and clients, execution of operations, handlers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from gateway.admission.limits import (
    MAX_ADDRESSES,
    InProcessRateLimiter,
    RateLimiter,
    open_rate_limiter,
)
from gateway.admission.load import LoadShedder
from gateway.auth.keys import ApiKeyStore
from gateway.config.settings import Settings
from gateway.legacy_api.codec import LegacyCodec
from gateway.legacy_api.handler import LegacyHandler
from gateway.migration.brownouts import load_brownouts
from gateway.migration.forwarding import LegacySender
from gateway.migration.modes import open_modes
from gateway.migration.routing import ServiceRouter
from gateway.migration.shadow_traffic import ShadowTraffic
from gateway.observability.traces import open_tracing
from gateway.operator.restore_check import RestoreDetector
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import RecipientCaches, RemoteChanges, list_no_remote_changes
from gateway.server.process import calculate_max_request_seconds
from gateway.signed_api.handler import SignedHandler
from gateway.signed_api.senders import SenderAuthenticator, SignerStore
from gateway.signed_api.transitions import SignedWriteGuard
from gateway.storage import ObjectStateStore, Store, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.change_poller import ChangePoller
from gateway.storage.request_counts import UsageCounter
from gateway.upstream.capabilities import CapabilityCache, load_capabilities
from gateway.upstream.circuit_breaker import CircuitBreakers
from gateway.upstream.client import UpstreamClient, create_circuit_breakers, open_upstream_client
from gateway.upstream.clock import ServiceClock
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.upstream.passthrough import open_passthrough_client
from gateway.writes.batch_routing import BatchRouting
from gateway.writes.executor import FlowExecutor
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.instance_leases import LEASE_TTL_SECONDS, InstanceLeases
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.reconciler import WriteReconciler


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a gateway, which tests replace.

    ``service`` is used for request timestamps; ``monotonic`` decides when a write that is not
    visible can no longer be executed. A process that does not renew its lease for
    ``lease_seconds`` is considered dead.
    """

    service: ServiceClock
    monotonic: Callable[[], float] = time.monotonic
    lease_seconds: float = LEASE_TTL_SECONDS

    def read_current_time(self) -> datetime:
        return datetime.fromtimestamp(self.service.wall(), UTC)


@dataclass(frozen=True, slots=True)
class Backends:
    """The database, the rate limiter and the client of the service."""

    store: Store
    change_poller: ChangePoller
    object_states: ObjectStateStore
    keys: ApiKeyStore
    rate_limiter: RateLimiter
    address_limiter: RateLimiter
    capabilities: CapabilityCache
    breakers: CircuitBreakers
    legacy_breakers: CircuitBreakers
    upstream: UpstreamClient

    def list_breaker_states(self) -> dict[str, str]:
        """Returns the circuit breaker state of each environment of both services."""
        legacy_states = self.legacy_breakers.map_environments_to_states()
        return {
            **self.breakers.map_environments_to_states(),
            **{f"legacy {name}": state for name, state in legacy_states.items()},
        }


@dataclass(frozen=True, slots=True)
class FlowRuntime:
    """The parts that execute operations: caches, journal, executor, idempotency, reconciler."""

    load: LoadShedder
    recipient_caches: RecipientCaches
    journal: Journal
    ids: AliasIds
    executor: FlowExecutor
    reconciler: WriteReconciler
    idempotency_guard: IdempotencyGuard


async def open_backends(
    stack: AsyncExitStack,
    settings: Settings,
    clocks: Clocks,
    create_client: Callable[..., UpstreamClient] = UpstreamClient,
) -> Backends:
    """Opens the backends; raises ConfigurationError and StoreUnavailable."""
    await stack.enter_async_context(open_tracing(settings.traces))
    store = await stack.enter_async_context(
        open_store(settings.state, serves=True, clock=clocks.read_current_time)
    )
    # Checked before anything that could send a write: after a restore no batch may be started.
    await stack.enter_async_context(RestoreDetector(store, settings.state.restore_mark_path))
    rate_limiter = await stack.enter_async_context(
        # Redis stores digests instead of names; all processes derive the same key for them.
        open_rate_limiter(settings, store.encryption.derive_key_from_oldest("limits"))
    )
    object_states = ObjectStateStore(store)
    # Loaded from the database, so that a restart does not probe the service again.
    capabilities = await load_capabilities(
        object_states, settings.environments.map_configured_environments_by_name()
    )
    keys = await stack.enter_async_context(ApiKeyStore(store))
    change_poller = ChangePoller(store)
    change_poller.add_listener(keys.reload_if_changed)
    change_poller.add_listener(capabilities.reload_if_changed)
    breakers = create_circuit_breakers(settings)
    upstream = await stack.enter_async_context(
        open_upstream_client(
            settings,
            clock=clocks.service,
            capabilities=capabilities,
            breakers=breakers,
            create_client=create_client,
        )
    )
    keys.add_key_change_listener(upstream.problems.forget_refusals)
    return Backends(
        store,
        change_poller,
        object_states,
        keys,
        rate_limiter,
        # Requests without a valid key are counted by address, apart from the limits of keys.
        InProcessRateLimiter(max_keys=MAX_ADDRESSES),
        capabilities,
        breakers,
        create_circuit_breakers(settings, "legacy"),
        upstream,
    )


async def open_flow_runtime(
    stack: AsyncExitStack, settings: Settings, backends: Backends, clocks: Clocks
) -> FlowRuntime:
    """Creates the parts that execute operations; the reconciler is not started yet."""
    store, object_states = backends.store, backends.object_states
    recipient_caches = _create_recipient_caches(stack, settings, store, backends.change_poller)
    journal = Journal(
        store,
        object_states,
        clocks.service,
        clocks.lease_seconds,
        replay_seconds=settings.writes.replay_seconds,
    )
    ids = AliasIds(store, settings.legacy.stand_ins)
    outcome_policy = OutcomePolicy(journal, clocks.service, clocks.monotonic)
    load = LoadShedder(settings.load)
    executor = FlowExecutor(
        backends.upstream,
        object_states,
        settings.vocabulary.build_vocabulary(),
        OptionalEndpoints(settings.upstream.inferred_operations, backends.capabilities),
        policy=outcome_policy,
        listing=ListReader(recipient_caches, ids.map_recipients_to_legacy_ids),
        load=load,
    )
    leases = InstanceLeases(store, journal.instance, clocks.lease_seconds)
    reconciler = WriteReconciler(store, journal, executor, outcome_policy, leases)
    idempotency_guard = IdempotencyGuard(
        journal,
        executor,
        reconciler,
        calculate_max_request_seconds(settings),
        joins_running=settings.writes.identical_in_flight == "retry",
    )
    return FlowRuntime(
        load,
        recipient_caches,
        journal,
        ids,
        executor,
        reconciler,
        idempotency_guard,
    )


async def open_legacy_handler(
    stack: AsyncExitStack,
    settings: Settings,
    backends: Backends,
    runtime: FlowRuntime,
    *,
    usage: UsageCounter,
    clocks: Clocks,
) -> LegacyHandler:
    """Creates the handler of the legacy interface, with everything that migrates its clients."""
    service_router = await _open_service_router(stack, settings, backends, runtime)
    current_time = backends.store.clock
    return LegacyHandler(
        settings,
        key_store=backends.keys,
        limits=backends.rate_limiter,
        unauthenticated_limits=backends.address_limiter,
        player=runtime.executor,
        idempotency_guard=runtime.idempotency_guard,
        codec=LegacyCodec(settings, runtime.ids, clocks.service.wall),
        usage=usage,
        brownouts=await load_brownouts(backends.store, current_time, backends.change_poller),
        forwarding=service_router,
        shadow_traffic=await stack.enter_async_context(
            ShadowTraffic(settings.comparing, backends.store, service_router, current_time)
        ),
        load=runtime.load,
        clock=current_time,
    )


async def _open_service_router(
    stack: AsyncExitStack, settings: Settings, backends: Backends, runtime: FlowRuntime
) -> ServiceRouter:
    """Creates the router between the two services, with the client of the legacy one."""
    addresses = settings.environments.map_legacy_base_urls_by_environment()
    client = await stack.enter_async_context(
        open_passthrough_client(settings, addresses, backends.legacy_breakers)
    )
    return ServiceRouter(
        await open_modes(backends.store, backends.keys, backends.change_poller),
        BatchRouting(backends.object_states, runtime.ids),
        LegacySender(client),
        runtime.idempotency_guard,
        settings.comparing,
    )


async def open_signed_handler(
    stack: AsyncExitStack,
    settings: Settings,
    backends: Backends,
    runtime: FlowRuntime,
    *,
    usage: UsageCounter,
    clocks: Clocks,
) -> SignedHandler:
    """Creates the handler of signed requests, with its own connections to the service."""
    signers = await stack.enter_async_context(SignerStore(backends.store, backends.keys))
    base_urls = settings.environments.map_base_urls_by_environment()
    return SignedHandler(
        settings,
        sender_authenticator=SenderAuthenticator(
            settings,
            signers,
            backends.rate_limiter,
            backends.upstream.clock,
            unauthenticated_limits=backends.address_limiter,
        ),
        passthrough=await stack.enter_async_context(
            open_passthrough_client(settings, base_urls, backends.breakers, clocks.service)
        ),
        write_guard=SignedWriteGuard(
            backends.object_states,
            runtime.journal.operations,
            runtime.idempotency_guard,
            backends.store.clock,
        ),
        recipient_caches=runtime.recipient_caches,
        usage=usage,
        load=runtime.load,
    )


def _create_recipient_caches(
    stack: AsyncExitStack, settings: Settings, store: Store, change_poller: ChangePoller
) -> RecipientCaches:
    create_remote_changes = (
        (lambda _owner: list_no_remote_changes)
        if store.is_of_one_process
        else partial(RemoteChanges, store)
    )
    recipient_caches = RecipientCaches(
        settings.lists, create_remote_changes, wall_clock=lambda: store.clock().timestamp()
    )
    change_poller.add_listener(recipient_caches.drop_expired_and_erased)
    stack.push_async_callback(recipient_caches.close)
    return recipient_caches
