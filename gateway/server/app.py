"""The house put together, and run: state, limits, upstream, player, the door, the admin port."""

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
from sqlalchemy import select

from gateway import console
from gateway.admin.authentication import create_auth_middleware as admin_door
from gateway.admin.port import Check, create_admin_application
from gateway.admission.limits import STRANGERS, InProcess, Limits, open_limits
from gateway.admission.load import Bounds, Load
from gateway.admission.load.descriptors import room_for
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
from gateway.reads.index import Dropping, Elsewhere, Indexes, list_no_processes
from gateway.reads.listing import Listing
from gateway.reads.recent_reads import Kept
from gateway.server.connection import RETIRE_SECONDS, AdminRunner, Server
from gateway.server.listening import Listening, Queue, bind_sockets
from gateway.server.memory_tuning import create_trim_task
from gateway.signed_api.handler import SignedHandler
from gateway.signed_api.routing import InterfaceRouter
from gateway.signed_api.senders import SenderAuthenticator
from gateway.signed_api.signers import SignerStore
from gateway.signed_api.transitions import SignedWriteGuard
from gateway.storage import Ledger, Store, StoreUnavailable, open_store
from gateway.storage.alias_ids import Ids
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.upstream.breaker import CircuitBreakers
from gateway.upstream.capability_cache import RELOAD_SECONDS, CapabilityCache, load_capabilities
from gateway.upstream.client import create_breakers, open_upstream
from gateway.upstream.clock import ServiceClock
from gateway.upstream.egress import EgressConfig
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.upstream.passthrough import PassthroughClient, open_passthrough
from gateway.writes.batch_routing import BatchRouting
from gateway.writes.instances import GONE_SECONDS, Heartbeats
from gateway.writes.journal import Journal
from gateway.writes.once import IdempotencyGuard
from gateway.writes.player import Player
from gateway.writes.settler import Settler
from gateway.writes.settling import Settling
from mappings.effects import JSON
from mappings.vocabulary import map_legacy_words

log = structlog.get_logger()

UPSTREAM_POOLS = 4
"""Pools of connections to the service: two environments, and the signed face has its own."""

SPARE_SECONDS = 5
"""How much longer than an upstream call a shutdown waits for what is in flight."""


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that accepts connections; the ports are those it really has."""

    at: ServerSettings
    port: int
    admin_port: int
    door: Listening
    server: Server
    load: Load

    def reload(self) -> None:
        """Reads the certificate anew; connections that are there keep theirs."""
        if self.server.certificate:
            self.server.certificate.reload()

    async def retire(self, seconds: float = RETIRE_SECONDS) -> None:
        """Takes no new connections, and ends the others when each has had its next answer."""
        await self.door.end()
        await self.server.retire(seconds)

    @property
    def requests(self) -> int:
        """How many are carried out at this moment, or wait for their turn."""
        return self.load.shares.going + self.load.shares.waiting

    @property
    def url(self) -> str:
        return build_url(self.at.host, self.port, "https" if self.server.certificate else "http")

    @property
    def admin_url(self) -> str:
        return build_url(self.at.admin_host, self.admin_port)


@dataclass(frozen=True, slots=True)
class Inherited:
    """Where a worker listens: at some queues of its parent's port, and for its parent at a socket."""

    queues: Sequence[Queue]
    numbers: Sequence[int]
    admin: Path


@asynccontextmanager
async def run_gateway(
    settings: Settings,
    inherited: Inherited | None = None,
    *,
    clock: ServiceClock | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    gone_seconds: float = GONE_SECONDS,
) -> AsyncIterator[Running]:
    """A running gateway; on leaving, what is in flight is finished first.

    ``inherited`` is for one of several workers. ``clock`` is what requests are stamped by, and
    stamps are held against; by ``monotonic`` it is told when a write that is not seen can no longer
    happen. After ``gone_seconds`` without a sign of it, a process is taken for gone. Raises
    Misconfigured, also where it cannot listen, and StoreUnavailable.
    """
    check_extensions()
    check_runnable(settings)
    clock = clock or ServiceClock()
    now = partial(_now, clock)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_tracing(settings.traces))
        store = await stack.enter_async_context(open_store(settings.state, serves=True, clock=now))
        await stack.enter_async_context(RestoreDetector(store, settings.state.mark))
        limits = await stack.enter_async_context(
            open_limits(settings, store.encryption.lasting("limits"))
        )
        strangers = InProcess(most=STRANGERS)
        ledger = Ledger(store)
        learned = await load_capabilities(ledger, settings.environments.configured())
        breakers = create_breakers(settings)
        upstream = await stack.enter_async_context(
            open_upstream(settings, clock=clock, capabilities=learned, breakers=breakers)
        )
        keyring = await stack.enter_async_context(ApiKeyStore(store))
        inferred = OptionalEndpoints(settings.upstream.inferred_operations, learned)
        indexes = await stack.enter_async_context(_indexes(settings, store))
        kept = Kept(is_alone=store.is_of_one_process, changed=indexes.changed)
        usage = await stack.enter_async_context(UsageCounter(store, now))
        journal = Journal(store, ledger, clock, gone_seconds)
        ids = Ids(store, settings.legacy.stand_ins)
        settler = Settler(journal, clock, monotonic)
        load = Load(settings.load)
        player = Player(
            upstream,
            ledger,
            settings.vocabulary.for_mappings(),
            inferred,
            kept=kept,
            settler=settler,
            listing=Listing(indexes, ids.of_recipients),
            load=load,
        )
        under_way = RequestsInProgress(now)
        instances = Heartbeats(
            store,
            journal.instance,
            gone_seconds,
            large=lambda: serialize_progress(under_way.list_progress()),
        )
        settling = Settling(store, journal, player, settler, instances)
        once = IdempotencyGuard(
            journal,
            player,
            settling,
            patience(settings),
            joins_running=settings.writes.identical_in_flight == "retry",
            replay_seconds=settings.writes.replay_seconds,
        )
        legacy_breakers = _legacy_breakers(settings)
        sender = LegacySender(
            await stack.enter_async_context(_to_legacy(settings, legacy_breakers))
        )
        begun = BatchRouting(ledger, ids)
        forwarding = ServiceRouter(
            await stack.enter_async_context(Modes(store, keyring)),
            begun,
            sender,
            ForwardedWrites(
                sender,
                begun,
                journal,
                settling,
                kept,
                retry_wait_seconds=patience(settings),
                joins_running=settings.writes.identical_in_flight == "retry",
            ),
            settings.comparing,
        )
        handler = LegacyHandler(
            settings,
            key_store=keyring,
            limits=limits,
            unauthenticated_limits=strangers,
            player=player,
            idempotency_guard=once,
            codec=LegacyCodec(settings, ids, now),
            usage=usage,
            brownouts=await stack.enter_async_context(Brownouts(store, now)),
            forwarding=forwarding,
            shadow_traffic=await stack.enter_async_context(
                ShadowTraffic(settings.comparing, store, forwarding, now)
            ),
            recorder=await stack.enter_async_context(_recorder(settings, now)),
            load=load,
            requests_in_progress=under_way,
            clock=now,
        )
        signers = await stack.enter_async_context(SignerStore(store, keyring))
        signed_face = SignedHandler(
            settings,
            sender_authenticator=SenderAuthenticator(
                settings, signers, limits, upstream.clock, unauthenticated_limits=strangers
            ),
            passthrough=await stack.enter_async_context(_to_current(settings, breakers, clock)),
            write_guard=SignedWriteGuard(ledger, journal.rows, once, now, patience(settings)),
            recent_reads=kept,
            usage=usage,
            load=load,
        )
        faces = InterfaceRouter(
            settings.vocabulary.current, legacy_handler=handler, signed_handler=signed_face
        )
        await stack.enter_async_context(settling)
        reconciler = Reconciler(store, ledger, player, ids, settings.environments.configured())
        watch = SupersededBatchMonitor(reconciler, settings.upstream.abandoned_check_seconds)
        for rounds in (
            watch,
            RetentionTask(store, settings.retention),
            create_trim_task(),
            _reloads(learned),
        ):
            await stack.enter_async_context(rounds)
        server = await stack.enter_async_context(_server(settings, faces))
        runner = web.ServerRunner(server, shutdown_timeout=shutdown_seconds(settings))
        door = await _door(stack, settings, runner, inherited)
        parts = console.ConsoleDependencies(
            settings,
            store,
            limits,
            upstream.clock,
            _checks(settings, store, limits),
            under_way,
            instances,
            indexes,
            has_parent=inherited is not None,
        )
        pages = _pages(
            parts,
            partial(_states, breakers, legacy_breakers),
            # Made when somebody asks for it: a start takes less long.
            cache(partial(_described, settings, door.port)),
        )
        admin = AdminRunner(pages, access_log=None)
        admin_port = await _admin_port(stack, settings, admin, inherited)
        await _tell_of_no_keys(store)
        yield Running(settings.server, door.port, admin_port, door, server, load)


def _reloads(learned: CapabilityCache) -> PeriodicTask:
    """What `doctor` or another process finds out about the service is known here soon."""
    return PeriodicTask("capability_reload", RELOAD_SECONDS, learned.reload, at_its_end=False)


def _pages(
    parts: console.ConsoleDependencies,
    states: Callable[[], Mapping[str, str]],
    description: Callable[[], Mapping[str, JSON]],
) -> web.Application:
    """The admin port's."""
    settings, environments = parts.settings, parts.settings.environments.configured()
    application = create_admin_application(
        parts.checks,
        description,
        MetricsPage(parts.store, parts.limits, parts.clock, parts.indexes, environments).render,
        states,
        # A worker's own is asked by its parent alone, who has asked before.
        [] if parts.has_parent else [admin_door(settings.server)],
    )
    console.add_console(application, parts)
    return application


@asynccontextmanager
async def _indexes(settings: Settings, store: Store) -> AsyncIterator[Indexes]:
    alone = store.is_of_one_process
    elsewhere = (lambda _owner: list_no_processes) if alone else partial(Elsewhere, store)
    indexes = Indexes(settings.lists, elsewhere, wall=lambda: store.clock().timestamp())
    if not settings.lists.index:
        yield indexes
        return
    async with Dropping(indexes, store):
        try:
            yield indexes
        finally:
            await indexes.close()


def _recorder(settings: Settings, clock: Callable[[], datetime]) -> Recorder:
    words = map_legacy_words(settings.vocabulary.for_mappings())
    return Recorder(settings.recording, clock, frozenset(words.values()))


def _to_current(
    settings: Settings, breakers: CircuitBreakers, clock: ServiceClock
) -> AbstractAsyncContextManager[PassthroughClient]:
    configured = settings.environments.configured().items()
    origins = {name: one.base_url for name, one in configured}
    return open_passthrough(settings, origins, breakers, clock)


def _to_legacy(
    settings: Settings, breakers: CircuitBreakers
) -> AbstractAsyncContextManager[PassthroughClient]:
    """The way to the legacy service, which fails or is well by itself."""
    return open_passthrough(settings, _legacy_origins(settings), breakers)


def _legacy_origins(settings: Settings) -> dict[str, str]:
    configured = settings.environments.configured().items()
    return {name: one.legacy_base_url for name, one in configured if one.legacy_base_url}


def _legacy_breakers(settings: Settings) -> CircuitBreakers:
    upstream = settings.upstream
    return CircuitBreakers(
        _legacy_origins(settings),
        upstream.breaker_failures,
        upstream.breaker_seconds,
        service="legacy",
    )


def _states(current: CircuitBreakers, legacy: CircuitBreakers) -> dict[str, str]:
    """Whether each environment is asked, of either service."""
    return {
        **current.list_states(),
        **{f"legacy {name}": state for name, state in legacy.list_states().items()},
    }


def _described(settings: Settings, port: int) -> Mapping[str, JSON]:
    """What clients may ask, and where."""
    addresses = openapi.list_public_urls(settings.server, port)
    return openapi.build_openapi_document(settings.vocabulary.for_mappings(), addresses)


async def _tell_of_no_keys(store: Store) -> None:
    """A state without keys is often one made by accident, in another folder."""
    if not await load_listed_keys(store):
        log.warning(
            "no_api_keys",
            database=store.where,
            **{"process.working_directory": str(Path.cwd())},
            reason="the database has no API key; every client is answered invalid_api_key",
            hint="run `payout-gateway keys import`, or start in the folder of the state that is meant",
        )


def _server(settings: Settings, faces: InterfaceRouter) -> Server:
    end = DeprecationNotice(settings.deprecation, settings.environments)
    return Server(faces, _bounds(settings), load_certificate(settings.server), end.select_headers())


def _bounds(settings: Settings) -> Bounds:
    load = settings.load
    return Bounds(
        room_for(load.connections, settings.upstream.connections * UPSTREAM_POOLS),
        load.head_seconds,
        load.idle_seconds,
        load.pressed_seconds,
    )


def _now(clock: ServiceClock) -> datetime:
    return datetime.fromtimestamp(clock.wall(), UTC)


def patience(settings: Settings) -> float:
    """Seconds that what was begun may take."""
    return settings.upstream.timeout_seconds + SPARE_SECONDS


def shutdown_seconds(settings: Settings) -> float:
    """That a shutdown waits for what has been asked, at most: some of it may still wait its turn."""
    return patience(settings) + settings.load.queue_seconds


async def _door(
    stack: AsyncExitStack,
    settings: Settings,
    runner: web.BaseRunner,
    inherited: Inherited | None,
) -> Listening:
    """Has clients' connections accepted."""
    server = settings.server
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    queues = (
        inherited.queues if inherited else bind_sockets(server.host, server.port, "SERVER__PORT")
    )
    door = Listening(runner, queues)
    stack.push_async_callback(door.end)
    await door.at(inherited.numbers if inherited else [0])
    return door


async def _admin_port(
    stack: AsyncExitStack,
    settings: Settings,
    runner: web.BaseRunner,
    inherited: Inherited | None,
) -> int:
    server = settings.server
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    if inherited:
        await web.UnixSite(runner, inherited.admin).start()
        return server.admin_port
    port = Listening(
        runner, bind_sockets(server.admin_host, server.admin_port, "SERVER__ADMIN_PORT")
    )
    stack.push_async_callback(port.end)
    await port.at([0])
    return port.port


def _checks(settings: Settings, store: Store, limits: Limits) -> dict[str, Check]:
    async def state() -> str | None:
        try:
            await store.read(lambda tx: tx.fetch(select(1)))
        except StoreUnavailable as unavailable:
            return str(unavailable)
        # A state that is full can be read. Nothing is written to find out: every process does, in
        # every few seconds.
        return str(store.unwritten) if store.unwritten else None

    way_out = EgressConfig(settings)

    def environment(name: str, origin: str) -> Check:
        async def check() -> str | None:
            return (
                None
                if await _answers(origin, way_out.build_request_options(name))
                else "base_url does not answer; see network and TLS"
            )

        return check

    environments = {
        f"environments.{name}": environment(name, one.base_url)
        for name, one in settings.environments.configured().items()
    }
    return {"state": state, "limits": limits.fault, **environments}


async def _answers(origin: str, way_out: Mapping[str, Any]) -> bool:
    """Whether anything speaks HTTP there; an unsigned request that changes nothing."""
    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(f"{origin}/v1/", allow_redirects=False, **way_out),
        ):
            return True
    except (aiohttp.ClientError, TimeoutError):
        return False


def install_shutdown_event() -> asyncio.Event:
    """Set on SIGTERM or SIGINT, from now on; to be called before anybody is told that we run."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    return told
