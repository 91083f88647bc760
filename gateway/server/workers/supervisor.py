"""The supervisor: binds the ports, runs the workers, and handles signals."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from gateway.admin.authentication import create_auth_middleware as door_of_admin
from gateway.config.settings import Misconfigured, Settings, build_url
from gateway.operator.preflight import check_runnable
from gateway.server.app import install_shutdown_event, shutdown_seconds
from gateway.server.connection import AdminRunner
from gateway.server.listening import Listening, Queue, bind_sockets, find_bound_port
from gateway.server.shutdown import Lifetime
from gateway.server.workers.admin import create_worker_metrics, create_workers_admin_application
from gateway.server.workers.pool import Crew
from gateway.server.workers.worker import Child, NotStarted

SPARE_SECONDS = 10
"""The supervisor waits this much longer than a worker's shutdown may take, and then kills it."""

LONGEST_FOLDER = 90
"""The path of a Unix socket is limited to about 100 bytes."""

log = structlog.get_logger()


class Parent:
    """Starts, restarts and stops the workers.

    ``load_settings`` reads the configuration again; workers read it from ``config_file``.
    """

    def __init__(
        self,
        settings: Settings,
        config: Path | None,
        load: Callable[[], Settings],
        door: Sequence[Queue],
        folder: Path,
    ) -> None:
        self._settings = settings
        self._config = config
        self._load = load
        self._door = door
        self._folder = folder
        self._numbers = count(1)
        self._crew: Crew | None = None
        self._leaving: dict[Crew, asyncio.Task[None]] = {}
        self.metrics = create_worker_metrics(self.workers)

    def workers(self) -> list[Path]:
        """The admin sockets of the workers that accept connections."""
        return [child.admin for child in self._crew.children()] if self._crew else []

    async def start(self) -> None:
        """Start the workers and wait until all accept connections; raises WorkerStartError."""
        server = self._settings.server
        crew = Crew(server.workers, len(self._door), self._child)
        await crew.start()
        self._crew = crew

    async def restart(self) -> None:
        """Replace the workers by new ones with the current configuration."""
        log.info("restart_started")
        before, old, its = self._settings, self._crew, self.workers()
        try:
            self._settings = self._load()
            check_runnable(self._settings)
            await self.start()
        except (Misconfigured, NotStarted) as error:
            self._settings = before
            log.error("restart_failed", reason=f"{error}; the old workers keep running")
            return
        if _ports(before) != _ports(self._settings):
            log.warning(
                "port_change_ignored", reason="host and ports change only when the process restarts"
            )
        if old:
            await self.metrics.look(its)  # or the counts since the last scrape would be lost
            old.retire()
            self._leaving[old] = asyncio.ensure_future(old.gone())
            self._leaving[old].add_done_callback(lambda _: self._leaving.pop(old, None))
        log.info("restart_complete", workers=self._settings.server.workers)

    async def end(self) -> int:
        """Stop all workers gracefully; return the exit code, 1 if one had to be killed."""
        crews = [*self._leaving, *filter(None, [self._crew])]
        for crew in crews:
            crew.end()
        # New connections are refused once the workers have closed their copies of the sockets too.
        for one in chain(*self._door):
            one.close()
        if await _gone(crews, shutdown_seconds(self._settings) + SPARE_SECONDS):
            return 0
        log.error(
            "workers_killed", reason="they did not stop in time; requests in flight were lost"
        )
        for crew in crews:
            crew.end(signal.SIGKILL)
        await _gone(crews, SPARE_SECONDS)
        return 1

    async def _child(self, queues: Sequence[int]) -> Child:
        admin = self._folder / f"{next(self._numbers)}"
        return await Child.start(self._config, self._door, queues, admin)


async def _gone(crews: Sequence[Crew], seconds: float) -> bool:
    """Wait up to ``seconds`` for all workers to exit; return whether they did."""
    ends = [asyncio.ensure_future(crew.gone()) for crew in crews]
    _, missing = await asyncio.wait(ends, timeout=seconds) if ends else ((), ())
    return not missing


def _ports(settings: Settings) -> tuple[str, int, str, int]:
    server = settings.server
    return server.host, server.port, server.admin_host, server.admin_port


async def supervise_workers(
    settings: Settings,
    config: Path | None,
    load: Callable[[], Settings],
    say: Callable[[str, str], None],
) -> int:
    """Run workers until SIGTERM or SIGINT; return the exit code.

    ``announce`` is called with the client and admin URLs when all workers accept connections.
    Raises ConfigurationError and WorkerStartError.
    """
    told, again, life = install_shutdown_event(), _told_to_restart(), Lifetime()
    check_runnable(settings)
    server = settings.server
    door = bind_sockets(server.host, server.port, "SERVER__PORT", queues=server.workers)
    admin = bind_sockets(server.admin_host, server.admin_port, "SERVER__ADMIN_PORT")
    urls = (
        build_url(server.host, find_bound_port(door), server.scheme),
        build_url(server.admin_host, find_bound_port(admin)),
    )
    with _folder() as folder:
        parent = Parent(settings, config, load, door, folder)
        application = create_workers_admin_application(
            parent.workers, parent.metrics, [door_of_admin(settings.server)]
        )
        async with _serving(AdminRunner(application, access_log=None), admin):
            try:
                if await _unless(told, parent.start()):
                    say(*urls)
                while await _unless(told, again.wait()):
                    again.clear()
                    await _unless(told, parent.restart())
            finally:
                life.ends(workers_left=len(parent.workers()))
                code = await parent.end()
    if code == 0:
        life.ended()
    return code


def _told_to_restart() -> asyncio.Event:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told.set)
    return told


@contextmanager
def _folder() -> Iterator[Path]:
    """Create a folder for sockets that only this user can access."""
    try:
        made = tempfile.TemporaryDirectory(prefix="payout-gateway-")
    except OSError as error:
        told = f"cannot create a temporary folder for the workers' sockets ({error.strerror})"
        raise Misconfigured([f"{told}; set TMPDIR to another folder"]) from None
    with made as name:
        if len(name) > LONGEST_FOLDER:
            raise Misconfigured(
                [f"{name} is too long for socket paths; set TMPDIR to a shorter path"]
            )
        yield Path(name)


@asynccontextmanager
async def _serving(runner: web.AppRunner, queues: Sequence[Queue]) -> AsyncIterator[None]:
    await runner.setup()
    port = Listening(runner, queues)
    try:
        await port.at([0])
        yield
    finally:
        await port.end()
        await runner.cleanup()


async def _unless(told: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
    """Run a coroutine, cancelled on shutdown; return whether it completed before a shutdown."""
    doing, ended = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
        return not ended.done()
    finally:
        doing.cancel()
        ended.cancel()
        await asyncio.gather(doing, ended, return_exceptions=True)
