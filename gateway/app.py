"""The house put together, and run: state, limits, upstream, player, the door, the admin port."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
from aiohttp import web

from gateway.admin import Check, admin_application
from gateway.handler import Handler
from gateway.keys import Keyring
from gateway.learned import recall_learned
from gateway.limits import open_limits
from gateway.player import Player
from gateway.server import Server
from gateway.settings import Misconfigured, Settings
from gateway.store import Ledger, Store, StoreUnavailable, open_store
from gateway.upstream import check_extensions, open_upstream
from mappings.spelling import of_current, of_legacy

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
    problems = []
    if not settings.environments.configured():
        problems.append(
            "environments: none is configured; set base_url under [environments.live] or "
            "[environments.sandbox]"
        )
    if settings.server.workers > 1 and settings.state.url.startswith("sqlite"):
        problems.append(
            "server.workers: more than one process cannot share a SQLite state; set state.url to "
            "a postgresql:// address, or workers to 1"
        )
    elif settings.server.workers > 1:
        problems.append("server.workers: this version runs one process; set workers to 1")
    if problems:
        raise Misconfigured(problems)


@asynccontextmanager
async def run(settings: Settings) -> AsyncIterator[Running]:
    """A running gateway; on leaving, what is in flight is finished first.

    Raises Misconfigured, StoreUnavailable, and OSError where it cannot listen.
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
        player = Player(upstream, ledger, of_current(vocabulary))
        handler = Handler(
            settings,
            keyring=keyring,
            limits=limits,
            player=player,
            spelling=of_legacy(vocabulary),
            clock=_now,
        )
        door = web.ServerRunner(Server(handler), shutdown_timeout=_patience(settings))
        admin = web.AppRunner(admin_application(_checks(settings, store)), access_log=None)
        host, port = await _listen(stack, door, settings.server.host, settings.server.port)
        admin_host, admin_port = await _listen(
            stack, admin, settings.server.admin_host, settings.server.admin_port
        )
        yield Running(host, port, admin_host, admin_port)


def _now() -> datetime:
    return datetime.now(UTC)


def _patience(settings: Settings) -> float:
    return settings.upstream.timeout_seconds + SPARE_SECONDS


async def _listen(
    stack: AsyncExitStack, runner: web.BaseRunner, host: str, port: int
) -> tuple[str, int]:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port, reuse_address=True).start()
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

    async def environments() -> str | None:
        origins = [one.base_url for one in settings.environments.configured().values()]
        reached = await asyncio.gather(*map(_answers, origins))
        return (
            None if any(reached) else "no environment's base_url answers; see its network and TLS"
        )

    return {"state": state, "environments": environments}


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
