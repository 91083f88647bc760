"""The house put together, and run: state, limits, upstream, player, the door, the admin port."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import structlog
from aiohttp import web

from gateway.admin import Check, admin_application
from gateway.handler import Handler
from gateway.ids import Ids
from gateway.inferred import InferredOperations
from gateway.keys import Keyring
from gateway.learned import recall_learned
from gateway.limits import open_limits
from gateway.player import Player
from gateway.server import Server
from gateway.settings import ENVIRONMENT_PREFIX, Misconfigured, Settings
from gateway.store import Ledger, Store, StoreUnavailable, open_store
from gateway.store.engine import parsed
from gateway.store.key_rows import listed_keys
from gateway.upstream import check_extensions, open_upstream
from mappings.spelling import of_legacy

log = structlog.get_logger()

SPARE_SECONDS = 5
"""How much longer than an upstream call a shutdown waits for what is in flight."""


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that accepts connections; the ports are those it really has."""

    host: str
    port: int
    admin_host: str
    admin_port: int

    @property
    def url(self) -> str:
        return _url(self.host, self.port)

    @property
    def admin_url(self) -> str:
        return _url(self.admin_host, self.admin_port)


def check_runnable(settings: Settings) -> None:
    """Raises Misconfigured for what is well-formed and still cannot be run."""
    if problems := list(_problems(settings)):
        raise Misconfigured(problems)


def _problems(settings: Settings) -> Iterator[str]:
    server = settings.server
    if not settings.environments.configured():
        yield (
            "environments: none is configured; set base_url under [environments.live] or "
            "[environments.sandbox]"
        )
    try:
        parsed(settings.state.url)
    except StoreUnavailable as unavailable:
        yield f"state.url: {unavailable}"
    if server.workers > 1 and settings.state.url.startswith("sqlite"):
        yield (
            "server.workers: more than one process cannot share a SQLite state; set state.url to "
            "a postgresql:// address, or workers to 1"
        )
    elif server.workers > 1:
        yield "server.workers: this version runs one process; set workers to 1"
    if not settings.limits.url.startswith("memory://"):
        yield "limits.url: the shared limit is not built yet; use memory://"
    if server.port and (server.host, server.port) == (server.admin_host, server.admin_port):
        yield "server.admin_port: is the port that clients use; choose another"


@asynccontextmanager
async def run(settings: Settings) -> AsyncIterator[Running]:
    """A running gateway; on leaving, what is in flight is finished first.

    Raises Misconfigured, also where it cannot listen, and StoreUnavailable.
    """
    check_extensions()
    check_runnable(settings)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings.state))
        limits = await stack.enter_async_context(open_limits(settings))
        ledger = Ledger(store)
        learned = await recall_learned(ledger, settings.environments.configured())
        upstream = await stack.enter_async_context(open_upstream(settings, learned=learned))
        keyring = await stack.enter_async_context(Keyring(store))
        vocabulary = settings.vocabulary.for_mappings()
        inferred = InferredOperations(settings.upstream.inferred_operations, learned)
        player = Player(upstream, ledger, vocabulary, inferred)
        handler = Handler(
            settings,
            keyring=keyring,
            limits=limits,
            player=player,
            ids=Ids(store, settings.legacy.stand_ins),
            spelling=of_legacy(vocabulary),
            clock=_now,
        )
        door = web.ServerRunner(Server(handler), shutdown_timeout=_patience(settings))
        admin = web.AppRunner(admin_application(_checks(settings, store)), access_log=None)
        server = settings.server
        host, port = await _listen(stack, door, server.host, server.port, "SERVER__PORT")
        admin_host, admin_port = await _listen(
            stack, admin, server.admin_host, server.admin_port, "SERVER__ADMIN_PORT"
        )
        await _tell_of_no_keys(store)
        yield Running(host, port, admin_host, admin_port)


async def _tell_of_no_keys(store: Store) -> None:
    """A state without keys is often one made by accident, in another folder."""
    if not await listed_keys(store):
        log.warning(
            "no_keys",
            state=store.where,
            folder=str(Path.cwd()),
            means="every client is answered invalid_api_key",
            do="run `payout-gateway keys import`, or start in the folder of the state that is meant",
        )


def _now() -> datetime:
    return datetime.now(UTC)


def _patience(settings: Settings) -> float:
    return settings.upstream.timeout_seconds + SPARE_SECONDS


async def _listen(
    stack: AsyncExitStack, runner: web.BaseRunner, host: str, port: int, variable: str
) -> tuple[str, int]:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        told = f"cannot listen on {host} port {port}: {why}; {ENVIRONMENT_PREFIX}{variable} sets another"
        raise Misconfigured([told]) from None
    return host, runner.addresses[0][1]


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _checks(settings: Settings, store: Store) -> dict[str, Check]:
    async def state() -> str | None:
        try:
            async with store.read():
                return None
        except StoreUnavailable as unavailable:
            return str(unavailable)

    def environment(origin: str) -> Check:
        async def check() -> str | None:
            return (
                None if await _answers(origin) else "base_url does not answer; see network and TLS"
            )

        return check

    environments = {
        f"environments.{name}": environment(one.base_url)
        for name, one in settings.environments.configured().items()
    }
    return {"state": state, **environments}


async def _answers(origin: str) -> bool:
    """Whether anything speaks HTTP there; an unsigned request that changes nothing."""
    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(f"{origin}/v1/", allow_redirects=False),
        ):
            return True
    except (aiohttp.ClientError, TimeoutError):
        return False


def told_to_end() -> asyncio.Event:
    """Set on SIGTERM or SIGINT, from now on; to be called before anybody is told that we run."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    return told
