"""Assembles and runs a gateway: database, rate limits, clients, handlers, and the two ports."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from aiohttp import web

from gateway import console
from gateway.admin.authentication import create_auth_middleware
from gateway.admin.port import Check, create_admin_application
from gateway.admission.limits import (
    MAX_ADDRESSES,
    InProcessRateLimiter,
    RateLimiter,
    open_rate_limiter,
)
from gateway.admission.load import ConnectionBounds, LoadShedder
from gateway.admission.load.file_descriptors import reserve_descriptors
from gateway.auth.key_rows import load_listed_keys
from gateway.auth.keys import ApiKeyStore
from gateway.config.extensions import check_extensions
from gateway.config.settings import Server as ServerSettings
from gateway.config.settings import Settings, build_url
from gateway.docgen import openapi
from gateway.http.progress import RequestsInProgress, serialize_progress
from gateway.http.tls import load_certificate
from gateway.legacy_api.codec import LegacyCodec
from gateway.legacy_api.deprecation import DeprecationNotice
from gateway.legacy_api.handler import LegacyHandler
from gateway.migration.brownouts import Brownouts
from gateway.migration.forwarding import ForwardedWrites, LegacySender
from gateway.migration.modes import Modes
from gateway.migration.recorder import Recorder
from gateway.migration.routing import ServiceRouter
from gateway.migration.shadow_traffic import ShadowTraffic
from gateway.migration.usage import UsageCounter
from gateway.observability.traces import open_tracing
from gateway.operator.ledger_reconciliation import Reconciler
from gateway.operator.metrics_page import MetricsPage
from gateway.operator.preflight import check_runnable
from gateway.operator.restore_check import RestoreDetector
from gateway.operator.retention import RetentionTask
from gateway.operator.superseded_batch_monitor import SupersededBatchMonitor
from gateway.reads.listing import ListReader
from gateway.reads.recent_reads import RecentReads
from gateway.reads.recipient_cache import (
    CacheInvalidation,
    RecipientCaches,
    RemoteChanges,
    list_no_remote_changes,
)
from gateway.server.connection import RETIRE_IDLE_SECONDS, AdminRunner, HttpServer
from gateway.server.listener import AcceptQueue, Listener, bind_sockets
from gateway.server.memory_tuning import create_trim_task
from gateway.signed_api.handler import SignedHandler
from gateway.signed_api.routing import InterfaceRouter
from gateway.signed_api.senders import SenderAuthenticator
from gateway.signed_api.signers import SignerStore
from gateway.signed_api.transitions import SignedWriteGuard
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.upstream.breaker import CircuitBreakers
from gateway.upstream.capability_cache import RELOAD_SECONDS, CapabilityCache, load_capabilities
from gateway.upstream.client import create_breakers, open_upstream
from gateway.upstream.clock import ServiceClock
from gateway.upstream.egress import EgressConfig
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.upstream.passthrough import PassthroughClient, open_passthrough
from gateway.writes.batch_routing import BatchRouting
from gateway.writes.executor import FlowExecutor
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.instance_leases import LEASE_TTL_SECONDS, Heartbeats
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.reconciler import WriteReconciler
from mappings.effects import JSON
from mappings.vocabulary import map_legacy_words

log = structlog.get_logger()

UPSTREAM_POOLS = 4
"""Connection pools to the service: one for each environment, and again for the signed interface."""

SHUTDOWN_MARGIN_SECONDS = 5
"""A shutdown waits this much longer than an upstream call may take for requests in flight."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that accepts connections, with the ports that it is bound to."""

    settings: ServerSettings
    port: int
    admin_port: int
    listener: Listener
    server: HttpServer
    load: LoadShedder

    def reload_certificate(self) -> None:
        """Reload the TLS certificate; open connections keep the old one."""
        if self.server.certificate:
            self.server.certificate.reload()

    async def retire(self, seconds: float = RETIRE_IDLE_SECONDS) -> None:
        """Stop accepting connections, and close each open one after its next response."""
        await self.listener.close()
        await self.server.retire(seconds)

    @property
    def pending_requests(self) -> int:
        """The number of requests that run or wait for admission."""
        return self.load.limiter.running_count + self.load.limiter.waiting_count

    @property
    def url(self) -> str:
        return build_url(
            self.settings.host, self.port, "https" if self.server.certificate else "http"
        )

    @property
    def admin_url(self) -> str:
        return build_url(self.settings.admin_host, self.admin_port)


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """The sockets that a worker gets from the supervisor.

    It accepts clients from some of the port's queues, and the supervisor's admin requests at a Unix
    socket.
    """

    accept_queues: Sequence[AcceptQueue]
    queue_numbers: Sequence[int]
    admin_socket: Path


@asynccontextmanager
async def run_gateway(
    settings: Settings,
    inherited_sockets: InheritedSockets | None = None,
    *,
    clock: ServiceClock | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    lease_seconds: float = LEASE_TTL_SECONDS,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway; on exit, requests in flight are finished first.

    ``inherited_sockets`` is set for one of several workers. ``clock`` is used for request timestamps;
    ``monotonic`` decides when a write that is not visible can no longer be executed. A process
    without a heartbeat for ``lease_seconds`` is considered dead. Raises ConfigurationError, also if
    a port cannot be bound, and StoreUnavailable.
    """
    check_extensions()
    check_runnable(settings)
    clock = clock or ServiceClock()
    current_time = partial(_read_current_time, clock)
    # Entered in the order of their dependencies, so that a shutdown closes the ports first and the
    # database last.
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_tracing(settings.traces))
        store = await stack.enter_async_context(
            open_store(settings.state, serves=True, clock=current_time)
        )
        await stack.enter_async_context(RestoreDetector(store, settings.state.mark_path))
        limits = await stack.enter_async_context(
            open_rate_limiter(settings, store.encryption.derive_lasting_key("limits"))
        )
        # Requests without a valid key are counted by address, apart from the limits of keys.
        address_limits = InProcessRateLimiter(max_keys=MAX_ADDRESSES)
        ledger = ObjectStateStore(store)
        capabilities = await load_capabilities(ledger, settings.environments.select_configured())
        breakers = create_breakers(settings)
        upstream = await stack.enter_async_context(
            open_upstream(settings, clock=clock, capabilities=capabilities, breakers=breakers)
        )
        keyring = await stack.enter_async_context(ApiKeyStore(store))
        optional_endpoints = OptionalEndpoints(settings.upstream.inferred_operations, capabilities)
        recipient_caches = await stack.enter_async_context(_open_recipient_caches(settings, store))
        # Only without other processes, whose changes would not invalidate these answers.
        recent_reads = RecentReads(
            is_single_process=store.is_of_one_process, on_change=recipient_caches.record_change
        )
        usage = await stack.enter_async_context(UsageCounter(store, current_time))
        journal = Journal(store, ledger, clock, lease_seconds)
        ids = AliasIds(store, settings.legacy.stand_ins)
        settler = OutcomePolicy(journal, clock, monotonic)
        load = LoadShedder(settings.load)
        player = FlowExecutor(
            upstream,
            ledger,
            settings.vocabulary.build_vocabulary(),
            optional_endpoints,
            recent_reads=recent_reads,
            policy=settler,
            listing=ListReader(recipient_caches, ids.resolve_recipient_ids),
            load=load,
        )
        requests_in_progress = RequestsInProgress(current_time)
        heartbeats = Heartbeats(
            store,
            journal.instance,
            lease_seconds,
            format_large_requests=lambda: serialize_progress(requests_in_progress.list_progress()),
        )
        reconciliation = WriteReconciler(store, journal, player, settler, heartbeats)
        idempotency_guard = IdempotencyGuard(
            journal,
            player,
            reconciliation,
            calculate_operation_seconds(settings),
            joins_running=settings.writes.identical_in_flight == "retry",
            replay_seconds=settings.writes.replay_seconds,
        )
        legacy_breakers = _create_legacy_breakers(settings)
        sender = LegacySender(
            await stack.enter_async_context(_open_legacy_passthrough(settings, legacy_breakers))
        )
        batch_routing = BatchRouting(ledger, ids)
        forwarding = ServiceRouter(
            await stack.enter_async_context(Modes(store, keyring)),
            batch_routing,
            sender,
            ForwardedWrites(
                sender,
                batch_routing,
                journal,
                reconciliation,
                recent_reads,
                retry_wait_seconds=calculate_operation_seconds(settings),
                joins_running=settings.writes.identical_in_flight == "retry",
            ),
            settings.comparing,
        )
        handler = LegacyHandler(
            settings,
            key_store=keyring,
            limits=limits,
            unauthenticated_limits=address_limits,
            player=player,
            idempotency_guard=idempotency_guard,
            codec=LegacyCodec(settings, ids, current_time),
            usage=usage,
            brownouts=await stack.enter_async_context(Brownouts(store, current_time)),
            forwarding=forwarding,
            shadow_traffic=await stack.enter_async_context(
                ShadowTraffic(settings.comparing, store, forwarding, current_time)
            ),
            recorder=await stack.enter_async_context(_create_recorder(settings, current_time)),
            load=load,
            requests_in_progress=requests_in_progress,
            clock=current_time,
        )
        signers = await stack.enter_async_context(SignerStore(store, keyring))
        signed_face = SignedHandler(
            settings,
            sender_authenticator=SenderAuthenticator(
                settings, signers, limits, upstream.clock, unauthenticated_limits=address_limits
            ),
            passthrough=await stack.enter_async_context(
                _open_current_passthrough(settings, breakers, clock)
            ),
            write_guard=SignedWriteGuard(
                ledger,
                journal.operations,
                idempotency_guard,
                current_time,
                calculate_operation_seconds(settings),
            ),
            recent_reads=recent_reads,
            usage=usage,
            load=load,
        )
        interface_router = InterfaceRouter(
            settings.vocabulary.current, legacy_handler=handler, signed_handler=signed_face
        )
        await stack.enter_async_context(reconciliation)
        reconciler = Reconciler(
            store, ledger, player, ids, settings.environments.select_configured()
        )
        superseded_monitor = SupersededBatchMonitor(
            reconciler, settings.upstream.abandoned_check_seconds
        )
        for periodic_task in (
            superseded_monitor,
            RetentionTask(store, settings.retention),
            create_trim_task(),
            _create_reload_task(capabilities),
        ):
            await stack.enter_async_context(periodic_task)
        server = await stack.enter_async_context(_create_server(settings, interface_router))
        runner = web.ServerRunner(server, shutdown_timeout=calculate_shutdown_seconds(settings))
        listener = await _start_client_listener(stack, settings, runner, inherited_sockets)
        console_parts = console.ConsoleDependencies(
            settings,
            store,
            limits,
            upstream.clock,
            _create_readiness_checks(settings, store, limits),
            requests_in_progress,
            heartbeats,
            recipient_caches,
            has_parent=inherited_sockets is not None,
        )
        admin_application = _create_admin_pages(
            console_parts,
            partial(_list_breaker_states, breakers, legacy_breakers),
            # Built on the first request, to keep the start fast.
            cache(partial(_build_api_description, settings, listener.port)),
        )
        admin_runner = AdminRunner(admin_application, access_log=None)
        admin_port = await _start_admin_listener(stack, settings, admin_runner, inherited_sockets)
        await _warn_about_missing_keys(store)
        yield RunningGateway(settings.server, listener.port, admin_port, listener, server, load)


def _create_reload_task(capabilities: CapabilityCache) -> PeriodicTask:
    """Pick up what `doctor` or another process has learned about the service's capabilities."""
    return PeriodicTask(
        "capability_reload", RELOAD_SECONDS, capabilities.reload, runs_at_stop=False
    )


def _create_admin_pages(
    console_parts: console.ConsoleDependencies,
    list_breaker_states: Callable[[], Mapping[str, str]],
    build_description: Callable[[], Mapping[str, JSON]],
) -> web.Application:
    """Create the application of the admin port."""
    settings, environments = (
        console_parts.settings,
        console_parts.settings.environments.select_configured(),
    )
    application = create_admin_application(
        console_parts.checks,
        build_description,
        MetricsPage(
            console_parts.store,
            console_parts.limits,
            console_parts.clock,
            console_parts.indexes,
            environments,
        ).render,
        list_breaker_states,
        # Only the supervisor can reach a worker's admin socket, and it has authenticated the request.
        [] if console_parts.has_parent else [create_auth_middleware(settings.server)],
    )
    console.add_console(application, console_parts)
    return application


@asynccontextmanager
async def _open_recipient_caches(
    settings: Settings, store: Store
) -> AsyncIterator[RecipientCaches]:
    is_single_process = store.is_of_one_process
    create_remote_changes = (
        (lambda _owner: list_no_remote_changes)
        if is_single_process
        else partial(RemoteChanges, store)
    )
    recipient_caches = RecipientCaches(
        settings.lists, create_remote_changes, wall_clock=lambda: store.clock().timestamp()
    )
    if not settings.lists.index:
        yield recipient_caches
        return
    async with CacheInvalidation(recipient_caches, store):
        try:
            yield recipient_caches
        finally:
            await recipient_caches.close()


def _create_recorder(settings: Settings, clock: Callable[[], datetime]) -> Recorder:
    words = map_legacy_words(settings.vocabulary.build_vocabulary())
    return Recorder(settings.recording, clock, frozenset(words.values()))


def _open_current_passthrough(
    settings: Settings, breakers: CircuitBreakers, clock: ServiceClock
) -> AbstractAsyncContextManager[PassthroughClient]:
    configured = settings.environments.select_configured().items()
    origins = {name: environment.base_url for name, environment in configured}
    return open_passthrough(settings, origins, breakers, clock)


def _open_legacy_passthrough(
    settings: Settings, breakers: CircuitBreakers
) -> AbstractAsyncContextManager[PassthroughClient]:
    """Open the client of the legacy service, whose circuit breakers are separate."""
    return open_passthrough(settings, _list_legacy_origins(settings), breakers)


def _list_legacy_origins(settings: Settings) -> dict[str, str]:
    configured = settings.environments.select_configured().items()
    return {
        name: environment.legacy_base_url
        for name, environment in configured
        if environment.legacy_base_url
    }


def _create_legacy_breakers(settings: Settings) -> CircuitBreakers:
    upstream = settings.upstream
    return CircuitBreakers(
        _list_legacy_origins(settings),
        upstream.breaker_failures,
        upstream.breaker_seconds,
        service="legacy",
    )


def _list_breaker_states(current: CircuitBreakers, legacy: CircuitBreakers) -> dict[str, str]:
    """Return the circuit breaker state of each environment of both services."""
    return {
        **current.list_states(),
        **{f"legacy {name}": state for name, state in legacy.list_states().items()},
    }


def _build_api_description(settings: Settings, port: int) -> Mapping[str, JSON]:
    """Build the OpenAPI document of the legacy interface, with the public URLs."""
    addresses = openapi.list_public_urls(settings.server, port)
    return openapi.build_openapi_document(settings.vocabulary.build_vocabulary(), addresses)


async def _warn_about_missing_keys(store: Store) -> None:
    """Warn about a database without keys: it was often created by accident, in the wrong folder."""
    if not await load_listed_keys(store):
        log.warning(
            "no_api_keys",
            database=store.where,
            **{"process.working_directory": str(Path.cwd())},
            reason="the database has no API key; every client is answered invalid_api_key",
            hint="run `payout-gateway keys import`, or start in the folder of the right database",
        )


def _create_server(settings: Settings, interface_router: InterfaceRouter) -> HttpServer:
    deprecation = DeprecationNotice(settings.deprecation, settings.environments)
    return HttpServer(
        interface_router,
        _build_connection_bounds(settings),
        load_certificate(settings.server),
        deprecation.select_headers(),
    )


def _build_connection_bounds(settings: Settings) -> ConnectionBounds:
    load = settings.load
    return ConnectionBounds(
        reserve_descriptors(load.connections, settings.upstream.connections * UPSTREAM_POOLS),
        load.head_seconds,
        load.idle_seconds,
        load.pressed_seconds,
    )


def _read_current_time(clock: ServiceClock) -> datetime:
    return datetime.fromtimestamp(clock.wall(), UTC)


def calculate_operation_seconds(settings: Settings) -> float:
    """Return the time that a running request may take."""
    return settings.upstream.timeout_seconds + SHUTDOWN_MARGIN_SECONDS


def calculate_shutdown_seconds(settings: Settings) -> float:
    """Return how long a shutdown waits at most: some requests may still wait for admission."""
    return calculate_operation_seconds(settings) + settings.load.queue_seconds


async def _start_client_listener(
    stack: AsyncExitStack,
    settings: Settings,
    runner: web.BaseRunner,
    inherited_sockets: InheritedSockets | None,
) -> Listener:
    """Start to accept client connections."""
    server = settings.server
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    queues = (
        inherited_sockets.accept_queues
        if inherited_sockets
        else bind_sockets(server.host, server.port, "SERVER__PORT")
    )
    listener = Listener(runner, queues)
    stack.push_async_callback(listener.close)
    await listener.accept_from(inherited_sockets.queue_numbers if inherited_sockets else [0])
    return listener


async def _start_admin_listener(
    stack: AsyncExitStack,
    settings: Settings,
    runner: web.BaseRunner,
    inherited_sockets: InheritedSockets | None,
) -> int:
    server = settings.server
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    if inherited_sockets:
        await web.UnixSite(runner, inherited_sockets.admin_socket).start()
        return server.admin_port
    listener = Listener(
        runner, bind_sockets(server.admin_host, server.admin_port, "SERVER__ADMIN_PORT")
    )
    stack.push_async_callback(listener.close)
    await listener.accept_from([0])
    return listener.port


def _create_readiness_checks(
    settings: Settings, store: Store, limits: RateLimiter
) -> dict[str, Check]:
    async def check_database() -> str | None:
        try:
            async with store.read():
                pass
        except StoreUnavailable as error:
            return str(error)
        # A database on a full disk can still be read. No write is needed to find out, because every
        # process writes a heartbeat every few seconds.
        return str(store.unwritten) if store.unwritten else None

    egress = EgressConfig(settings)

    def create_environment_check(name: str, origin: str) -> Check:
        async def check_environment() -> str | None:
            return (
                None
                if await _is_reachable(origin, egress.build_request_options(name))
                else "base_url does not answer; see network and TLS"
            )

        return check_environment

    environments = {
        f"environments.{name}": create_environment_check(name, environment_settings.base_url)
        for name, environment_settings in settings.environments.select_configured().items()
    }
    return {"state": check_database, "limits": limits.describe_fault, **environments}


async def _is_reachable(origin: str, request_options: Mapping[str, Any]) -> bool:
    """Return whether a server speaks HTTP there; sends an unsigned request that changes nothing."""
    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(f"{origin}/v1/", allow_redirects=False, **request_options),
        ):
            return True
    except (aiohttp.ClientError, TimeoutError):
        return False


def install_shutdown_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set.

    Call it before readiness is announced: the signal may follow immediately.
    """
    shutdown_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, shutdown_requested.set)
    return shutdown_requested
