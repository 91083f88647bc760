"""Assembles the parts of a gateway: database and clients, execution of operations, handlers."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from gateway.admission.limits import MAX_ADDRESSES, InProcessRateLimiter, open_rate_limiter
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
from gateway.reads.recipient_cache import RecipientCaches
from gateway.server.process import calculate_max_request_seconds
from gateway.signed_api.handler import SignedHandler
from gateway.signed_api.senders import SenderAuthenticator, SignerStore
from gateway.signed_api.transitions import SignedWriteGuard
from gateway.storage import ObjectStateStore, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.capability_cache import load_capabilities
from gateway.storage.change_poller import ChangePoller
from gateway.storage.request_counts import UsageCounter
from gateway.upstream.client import UpstreamClient, create_circuit_breakers, open_upstream_client
from gateway.upstream.clock import ServiceClock
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.upstream.passthrough import open_passthrough_client
from gateway.writes.batch_routing import BatchRouting
from gateway.writes.executor import FlowExecutor
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.instance_leases import InstanceLeases
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.reconciler import WriteReconciler

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a gateway, which tests replace.

    ``service`` is used for request timestamps; ``outcome`` decides when a write that is not visible
    can no longer be executed. A process that does not renew its lease for ``lease_seconds`` is
    considered dead.
    """

    service: ServiceClock
    outcome: ServiceClock
    lease_seconds: float

    def read_current_time(self) -> datetime:
        return datetime.fromtimestamp(self.service.wall(), UTC)


class GatewayParts:
    """The parts of a gateway, which its methods open one after the other, with what each needs.

    They are closed with ``stack``, in the opposite order. The reconciler is not started.
    """

    def __init__(self, stack: AsyncExitStack, settings: Settings, clocks: Clocks) -> None:
        self._stack = stack
        self.settings = settings
        self._clocks = clocks

    async def _enter(self, part: AbstractAsyncContextManager[Part]) -> Part:
        return await self._stack.enter_async_context(part)

    async def open_backends(self, create_client: Callable[..., UpstreamClient]) -> None:
        """Opens the database, the rate limiters and the client of the service.

        Raises ConfigurationError and StoreUnavailable.
        """
        settings, clocks = self.settings, self._clocks
        await self._enter(open_tracing(settings.traces))
        store = self.store = await self._enter(
            open_store(settings.state, serves=True, clock=clocks.read_current_time)
        )
        # Checked before anything that could send a write: after a restore no batch may be started.
        await self._enter(RestoreDetector(store, settings.state.restore_mark_path))
        # Redis stores digests instead of names; all processes derive the same key for them.
        digest_key = store.encryption.derive_key_from_oldest("limits")
        self.rate_limiter = await self._enter(open_rate_limiter(settings, digest_key))
        # Requests without a valid key are counted by address, apart from the limits of keys.
        self.address_limiter = InProcessRateLimiter(max_keys=MAX_ADDRESSES)
        self.object_states = ObjectStateStore(store, clocks.service.find_max_error)
        # Loaded from the database, so that a restart does not probe the service again.
        self.capabilities = await load_capabilities(store)
        self.keys = await self._enter(ApiKeyStore(store))
        self.change_poller = ChangePoller(store)
        self.change_poller.add_listener(self.keys.reload_if_changed)
        self.change_poller.add_listener(self.capabilities.reload_if_changed)
        self.breakers = create_circuit_breakers(settings)
        self.legacy_breakers = create_circuit_breakers(settings, "legacy")
        self.upstream = await self._enter(
            open_upstream_client(
                settings,
                clock=clocks.service,
                capabilities=self.capabilities,
                breakers=self.breakers,
                create_client=create_client,
            )
        )
        self.keys.add_key_change_listener(self.upstream.problems.forget_refusals)

    def list_breaker_states(self) -> dict[str, str]:
        """Returns the circuit breaker state of each environment of both services."""
        breakers = {**self.breakers}
        breakers |= {f"legacy {name}": each for name, each in self.legacy_breakers.items()}
        return {name: breaker.state for name, breaker in breakers.items()}

    async def open_handlers(self) -> None:
        """Opens the handlers of both interfaces, with what executes their operations."""
        self._create_executor()
        self._create_write_parts()
        self.usage = await self._enter(UsageCounter(self.store, self._clocks.service.wall))
        self.legacy_handler = await self._open_legacy_handler()
        self.signed_handler = await self._open_signed_handler()

    def _create_executor(self) -> None:
        settings, store, clocks = self.settings, self.store, self._clocks
        self.recipient_caches = RecipientCaches(
            settings.lists, store, wall_clock=lambda: store.clock().timestamp()
        )
        self.change_poller.add_listener(self.recipient_caches.drop_expired_and_erased)
        self._stack.push_async_callback(self.recipient_caches.close)
        self.journal = Journal(
            store,
            self.object_states,
            clocks.service,
            clocks.lease_seconds,
            replay_seconds=settings.writes.replay_seconds,
        )
        self.ids = AliasIds(store, settings.legacy.stand_ins)
        self.load = LoadShedder(settings.load)
        self.outcome_policy = OutcomePolicy(self.journal, clocks.outcome)
        self.executor = FlowExecutor(
            self.upstream,
            self.object_states,
            settings.vocabulary.build_vocabulary(),
            OptionalEndpoints(settings.upstream.inferred_operations, self.capabilities),
            policy=self.outcome_policy,
            listing=ListReader(self.recipient_caches, self.ids, self.capabilities),
            load=self.load,
        )

    def _create_write_parts(self) -> None:
        leases = InstanceLeases(self.store, self.journal.instance, self._clocks.lease_seconds)
        self.reconciler = WriteReconciler(
            self.store, self.journal, self.executor, self.outcome_policy, leases
        )
        self.idempotency_guard = IdempotencyGuard(
            self.journal,
            self.executor,
            self.reconciler,
            calculate_max_request_seconds(self.settings),
            joins_running=self.settings.writes.identical_in_flight == "retry",
        )

    async def _open_legacy_handler(self) -> LegacyHandler:
        """Opens the handler of the legacy interface, with everything that migrates its clients."""
        settings, store = self.settings, self.store
        service_router = await self._open_service_router()
        return LegacyHandler(
            settings,
            key_store=self.keys,
            limits=self.rate_limiter,
            unauthenticated_limits=self.address_limiter,
            flow_executor=self.executor,
            idempotency_guard=self.idempotency_guard,
            codec=LegacyCodec(settings, self.ids, self._clocks.service.wall),
            usage=self.usage,
            brownouts=await load_brownouts(store, store.clock, self.change_poller),
            service_router=service_router,
            shadow_traffic=await self._enter(
                ShadowTraffic(settings.comparing, store, service_router, store.clock)
            ),
            load=self.load,
            clock=store.clock,
        )

    async def _open_service_router(self) -> ServiceRouter:
        """Opens the router between the two services, with the client of the legacy one."""
        addresses = self.settings.environments.map_legacy_base_urls_by_environment()
        client = await self._enter(
            open_passthrough_client(self.settings, addresses, self.legacy_breakers)
        )
        return ServiceRouter(
            await open_modes(self.store, self.keys, self.change_poller),
            BatchRouting(self.object_states, self.ids),
            LegacySender(client),
            self.idempotency_guard,
            self.settings.comparing,
        )

    async def _open_signed_handler(self) -> SignedHandler:
        """Opens the handler of signed requests, with its own connections to the service."""
        settings = self.settings
        signers = await self._enter(SignerStore(self.store, self.keys))
        base_urls = settings.environments.map_base_urls_by_environment()
        return SignedHandler(
            settings,
            sender_authenticator=SenderAuthenticator(
                settings,
                signers,
                self.rate_limiter,
                self.upstream.clock,
                unauthenticated_limits=self.address_limiter,
            ),
            passthrough=await self._enter(
                open_passthrough_client(settings, base_urls, self.breakers, self._clocks.service)
            ),
            write_guard=SignedWriteGuard(
                self.object_states,
                self.journal.operations,
                self.idempotency_guard,
                self.store.clock,
            ),
            recipient_caches=self.recipient_caches,
            usage=self.usage,
            load=self.load,
        )
