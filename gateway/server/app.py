"""Runs a gateway: starts its parts and the two ports, and stops them in the opposite order."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Self

import structlog

from gateway import console
from gateway.admission.load import ConnectionBounds, LoadShedder
from gateway.admission.load.connections import raise_file_limit_and_cap_connections
from gateway.auth.key_rows import load_listed_keys
from gateway.config.sections import build_url
from gateway.config.settings import Server as ServerSettings
from gateway.config.settings import Settings
from gateway.http.tls import load_certificate
from gateway.legacy_api.deprecation import DeprecationNotice
from gateway.observability import metrics
from gateway.operator.ledger_reconciliation import Reconciler, monitor_superseded_batches
from gateway.operator.preflight import check_settings_are_runnable
from gateway.operator.retention import RetentionTask
from gateway.server.admin_application import create_admin_application, create_readiness_checks
from gateway.server.admin_server import AdminServer
from gateway.server.assembly import Clocks, GatewayParts
from gateway.server.http_server import HttpServer
from gateway.server.listener import (
    WorkerPorts,
    find_bound_port,
    start_admin_listener,
    start_client_listener,
)
from gateway.server.process import (
    ProcessLifetime,
    calculate_max_shutdown_seconds,
    create_trim_task,
    install_shutdown_event,
    tune_garbage_collector_and_malloc,
)
from gateway.signed_api.credentials import InterfaceRouter
from gateway.storage import Store
from gateway.upstream.client import UpstreamClient
from gateway.upstream.clock import ServiceClock
from gateway.writes.instance_leases import LEASE_TTL_SECONDS
from mappings.geography import build_country

log = structlog.get_logger()

HEAD_SECONDS = 10.0
"""Timeout of a TLS handshake, and of a request's header."""

PRESSED_SECONDS = 5.0
"""Replaces HEAD_SECONDS and ``load.idle_seconds`` while more than half of the connections are in use."""

UPSTREAM_POOLS = 4
"""Connection pools to the service: one for each environment, and again for the signed interface."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that accepts connections, with the ports that it is bound to."""

    settings: ServerSettings
    port: int
    admin_port: int
    listener: asyncio.Server
    server: HttpServer
    load: LoadShedder

    def reload_certificate(self) -> None:
        """Reloads the TLS certificate; open connections keep the old one."""
        if self.server.certificate:
            self.server.certificate.reload()

    async def retire(self) -> None:
        """Stops accepting connections, and closes each open one after its next response."""
        self.listener.close()
        await self.server.drain_connections()

    @property
    def pending_request_count(self) -> int:
        """The number of requests that run or wait for admission."""
        return self.load.limiter.running_count + self.load.limiter.waiting_count

    @property
    def url(self) -> str:
        scheme = "https" if self.server.certificate else "http"
        return build_url(self.settings.host, self.port, scheme)

    @property
    def admin_url(self) -> str:
        return build_url(self.settings.admin_host, self.admin_port)


@asynccontextmanager
async def run_gateway(
    settings: Settings,
    worker_ports: WorkerPorts | None = None,
    *,
    clock: ServiceClock | None = None,
    outcome_clock: ServiceClock | None = None,
    lease_seconds: float = LEASE_TTL_SECONDS,
    create_client: Callable[..., UpstreamClient] = UpstreamClient,
) -> AsyncIterator[RunningGateway]:
    """Runs a gateway; on exit, requests in flight are finished first.

    ``worker_ports`` is set for one of several workers; see Clocks for the others.
    Raises ConfigurationError, also if a port cannot be bound, and StoreUnavailable.
    """
    check_settings_are_runnable(settings)
    # Loads the regions of all countries, which takes 0.1 s, before there are requests to stall.
    build_country("US")
    clock = clock or ServiceClock()
    clocks = Clocks(clock, outcome_clock or clock, lease_seconds)
    # Entered in the order of their dependencies, so that a shutdown closes the ports first and the
    # database last.
    async with AsyncExitStack() as stack:
        parts = GatewayParts(stack, settings, clocks)
        await parts.open_backends(create_client)
        await parts.open_handlers()
        interface_router = InterfaceRouter(
            settings.vocabulary.current, parts.legacy_handler, parts.signed_handler
        )
        # Before the ports: without a lease others would take over what runs here. Closed after
        # them, to record the last deliveries.
        await stack.enter_async_context(parts.reconciler)
        for periodic_task in _create_periodic_tasks(parts):
            await stack.enter_async_context(periodic_task)
        server = await stack.enter_async_context(_create_server(settings, interface_router))
        listener = await start_client_listener(stack, settings, server, worker_ports)
        console_parts = console.ConsoleDependencies(
            settings,
            parts.store,
            parts.rate_limiter,
            parts.upstream.clock,
            create_readiness_checks(parts),
            parts.upstream.problems,
            parts.recipient_caches,
            admin_socket=worker_ports.admin_socket if worker_ports else None,
        )
        admin_application = create_admin_application(console_parts, parts)
        admin_server = await stack.enter_async_context(AdminServer(admin_application))
        admin_port = await start_admin_listener(stack, settings, admin_server, worker_ports)
        await _warn_about_database_without_keys(parts.store)
        ports = find_bound_port(listener), admin_port
        yield RunningGateway(settings.server, *ports, listener, server, parts.load)


@asynccontextmanager
async def run_process(
    settings: Settings, worker_ports: WorkerPorts | None = None
) -> AsyncIterator[tuple[RunningGateway, asyncio.Event]]:
    """Runs the gateway of this process; yields it and the event of a shutdown.

    Raises the errors of ``run_gateway``.
    """
    stop_event, lifetime = install_shutdown_event(), ProcessLifetime()
    async with run_gateway(settings, worker_ports) as gateway:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reload_certificate)
        # After the start, whose objects live as long as the process.
        tune_garbage_collector_and_malloc()
        admin_address = {} if worker_ports else {"admin_url": gateway.admin_url}
        lifetime.log_startup_complete(url=gateway.url, **admin_address)
        yield gateway, stop_event
        lifetime.record_shutdown_start(requests_left=gateway.pending_request_count)
        await gateway.retire()
    lifetime.log_shutdown_complete()


def _create_periodic_tasks(
    parts: GatewayParts,
) -> tuple[AbstractAsyncContextManager[object], ...]:
    """Creates the tasks that run in the background, in the order in which they start."""
    settings = parts.settings
    ledger_reconciler = Reconciler(
        parts.store,
        parts.object_states,
        parts.executor,
        parts.ids,
        settings.environments.map_configured_environments_by_name(),
    )
    return (
        monitor_superseded_batches(ledger_reconciler, settings.upstream.abandoned_check_seconds),
        RetentionTask(parts.store, settings.retention),
        create_trim_task(),
        EventLoopLagMonitor(),
        parts.change_poller,
    )


async def _warn_about_database_without_keys(store: Store) -> None:
    """Warns about a database without keys; often it was created in the wrong folder."""
    if not await load_listed_keys(store):
        log.warning(
            "no_api_keys",
            database=store.database.location,
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
        deprecation.headers_by_environment[None],
        shutdown_seconds=calculate_max_shutdown_seconds(settings),
    )


def _build_connection_bounds(settings: Settings) -> ConnectionBounds:
    load, upstream_connections = settings.load, settings.upstream.connections * UPSTREAM_POOLS
    connections = raise_file_limit_and_cap_connections(load.connections, upstream_connections)
    return ConnectionBounds(
        connections, HEAD_SECONDS, load.idle_seconds, PRESSED_SECONDS, load.held_bytes
    )


LAG_INTERVAL_SECONDS = 0.25


class EventLoopLagMonitor:
    """Measures how late the event loop is, at an interval; an async context manager."""

    async def __aenter__(self) -> Self:
        self._schedule()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()

    def _schedule(self) -> None:
        # Not the loop's clock, which is read once for each round and in whole milliseconds.
        self._due_at = perf_counter() + LAG_INTERVAL_SECONDS
        self._timer = asyncio.get_running_loop().call_later(LAG_INTERVAL_SECONDS, self._measure)

    def _measure(self) -> None:
        metrics.traffic.event_loop_lag.observe(max(perf_counter() - self._due_at, 0.0))
        # Not only at a scrape, of which there may be none.
        metrics.summarize_records()
        self._schedule()
