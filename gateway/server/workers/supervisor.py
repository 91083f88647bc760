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

from gateway.admin.authentication import create_auth_middleware
from gateway.config.settings import ConfigurationError, Settings, build_url
from gateway.operator.preflight import check_settings_are_runnable
from gateway.server.admin_server import AdminServer
from gateway.server.listener import AcceptQueue, Listener, bind_accept_queues, find_bound_port
from gateway.server.shutdown import (
    ProcessLifetime,
    calculate_max_shutdown_seconds,
    install_shutdown_event,
)
from gateway.server.workers.admin_port import (
    create_metrics_aggregator,
    create_workers_admin_application,
)
from gateway.server.workers.pool import WorkerPool
from gateway.server.workers.worker_process import WorkerProcess, WorkerStartError

KILL_MARGIN_SECONDS = 10
"""Seconds that the supervisor waits beyond a worker's shutdown limit before it kills the worker."""

MAX_SOCKET_FOLDER_LENGTH = 90
"""The path of a Unix socket is limited to about 100 bytes."""

log = structlog.get_logger()


class Supervisor:
    """Starts, restarts and stops the workers.

    ``load_settings`` reads the configuration again; workers read it from ``config_file``.
    """

    def __init__(
        self,
        settings: Settings,
        config_file: Path | None,
        load_settings: Callable[[], Settings],
        listening_queues: Sequence[AcceptQueue],
        socket_folder: Path,
    ) -> None:
        self._settings = settings
        self._config_file = config_file
        self._load_settings = load_settings
        self._listening_queues = listening_queues
        self._socket_folder = socket_folder
        self._socket_numbers = count(1)
        self._pool: WorkerPool | None = None
        self._retiring_pools: dict[WorkerPool, asyncio.Task[None]] = {}
        self.metrics = create_metrics_aggregator(self.list_worker_admin_sockets)

    def list_worker_admin_sockets(self) -> list[Path]:
        """The admin sockets of the workers that accept connections."""
        return (
            [worker.admin_socket for worker in self._pool.iter_accepting_workers()]
            if self._pool
            else []
        )

    async def start(self) -> None:
        """Starts the workers and waits until all accept connections; raises WorkerStartError."""
        server = self._settings.server
        # A new pool: the old one keeps serving until all workers of this one accept connections.
        pool = WorkerPool(server.workers, len(self._listening_queues), self._start_worker)
        await pool.start()
        self._pool = pool

    async def restart(self) -> None:
        """Replaces the workers by new ones with the current configuration."""
        log.info("restart_started")
        old_settings, old_pool, old_sockets = (
            self._settings,
            self._pool,
            self.list_worker_admin_sockets(),
        )
        try:
            self._settings = self._load_settings()
            check_settings_are_runnable(self._settings)
            await self.start()
        except (ConfigurationError, WorkerStartError) as error:
            # The old workers still run with these; a shutdown takes its time limit from them.
            self._settings = old_settings
            log.error("restart_failed", reason=f"{error}; the old workers keep running")
            return
        if _select_hosts_and_ports(old_settings) != _select_hosts_and_ports(self._settings):
            log.warning(
                "port_change_ignored", reason="host and ports change only when the process restarts"
            )
        if old_pool:
            await self.metrics.scrape(
                old_sockets
            )  # otherwise the counts since the last scrape would be lost
            old_pool.retire()
            # Remembered, so that a shutdown during the restart stops the old workers too.
            self._retiring_pools[old_pool] = asyncio.ensure_future(old_pool.wait_for_exit())
            self._retiring_pools[old_pool].add_done_callback(
                lambda _: self._retiring_pools.pop(old_pool, None)
            )
        log.info("restart_complete", workers=self._settings.server.workers)

    async def shut_down(self) -> int:
        """Stops all workers gracefully; returns the exit code, 1 if one had to be killed."""
        pools = [*self._retiring_pools, *filter(None, [self._pool])]
        for pool in pools:
            pool.stop_with_signal()
        # New connections are refused once the workers have closed their copies of the sockets too.
        for listening_socket in chain(*self._listening_queues):
            listening_socket.close()
        if await _wait_for_pools_to_exit(
            pools, calculate_max_shutdown_seconds(self._settings) + KILL_MARGIN_SECONDS
        ):
            return 0
        log.error(
            "workers_killed", reason="they did not stop in time; requests in flight were lost"
        )
        for pool in pools:
            pool.stop_with_signal(signal.SIGKILL)
        await _wait_for_pools_to_exit(pools, KILL_MARGIN_SECONDS)
        return 1

    async def _start_worker(self, queue_numbers: Sequence[int]) -> WorkerProcess:
        admin_socket = self._socket_folder / f"{next(self._socket_numbers)}"
        return await WorkerProcess.start(
            self._config_file, self._listening_queues, queue_numbers, admin_socket
        )


async def _wait_for_pools_to_exit(pools: Sequence[WorkerPool], seconds: float) -> bool:
    """Waits up to ``seconds`` for all workers to exit; returns whether they did."""
    exit_tasks = [asyncio.ensure_future(pool.wait_for_exit()) for pool in pools]
    _, unfinished = await asyncio.wait(exit_tasks, timeout=seconds) if exit_tasks else ((), ())
    return not unfinished


def _select_hosts_and_ports(settings: Settings) -> tuple[str, int, str, int]:
    server = settings.server
    return server.host, server.port, server.admin_host, server.admin_port


async def supervise_workers(
    settings: Settings,
    config_file: Path | None,
    load_settings: Callable[[], Settings],
    announce: Callable[[str, str], None],
) -> int:
    """Runs workers until SIGTERM or SIGINT; returns the exit code.

    ``announce`` is called with the client and admin URLs when all workers accept connections.
    Raises ConfigurationError and WorkerStartError.
    """
    shutdown_requested, restart_requested, lifetime = (
        install_shutdown_event(),
        _install_restart_event(),
        ProcessLifetime(),
    )
    check_settings_are_runnable(settings)
    server = settings.server
    listening_queues = bind_accept_queues(
        server.host, server.port, "SERVER__PORT", queue_count=server.workers
    )
    # Bound before any worker starts, so that a port in use is reported at once, and only once.
    admin_queues = bind_accept_queues(server.admin_host, server.admin_port, "SERVER__ADMIN_PORT")
    urls = (
        build_url(server.host, find_bound_port(listening_queues), server.scheme),
        build_url(server.admin_host, find_bound_port(admin_queues)),
    )
    with _create_socket_folder() as socket_folder:
        supervisor = Supervisor(
            settings, config_file, load_settings, listening_queues, socket_folder
        )
        application = create_workers_admin_application(
            supervisor.list_worker_admin_sockets,
            supervisor.metrics,
            # Authenticated here and not in the workers, whose sockets only this process can reach.
            [create_auth_middleware(settings.server)],
        )
        async with _serve_application(application, admin_queues):
            try:
                if await _run_or_cancel_on_shutdown(shutdown_requested, supervisor.start()):
                    lifetime.log_startup_complete(url=urls[0], admin_url=urls[1])
                    announce(*urls)
                while await _run_or_cancel_on_shutdown(
                    shutdown_requested, restart_requested.wait()
                ):
                    restart_requested.clear()
                    await _run_or_cancel_on_shutdown(shutdown_requested, supervisor.restart())
            finally:
                lifetime.record_shutdown_start(
                    workers_left=len(supervisor.list_worker_admin_sockets())
                )
                exit_code = await supervisor.shut_down()
    if exit_code == 0:
        lifetime.log_shutdown_complete()
    return exit_code


def _install_restart_event() -> asyncio.Event:
    restart_requested = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, restart_requested.set)
    return restart_requested


@contextmanager
def _create_socket_folder() -> Iterator[Path]:
    """Creates a folder for sockets that only this user can access."""
    try:
        temporary_folder = tempfile.TemporaryDirectory(prefix="payout-gateway-")
    except OSError as error:
        problem = f"cannot create a temporary folder for the workers' sockets ({error.strerror})"
        raise ConfigurationError([f"{problem}; set TMPDIR to another folder"]) from None
    with temporary_folder as name:
        if len(name) > MAX_SOCKET_FOLDER_LENGTH:
            raise ConfigurationError(
                [f"{name} is too long for socket paths; set TMPDIR to a shorter path"]
            )
        yield Path(name)


@asynccontextmanager
async def _serve_application(
    application: web.Application, queues: Sequence[AcceptQueue]
) -> AsyncIterator[None]:
    async with AdminServer(application) as server:
        listener = Listener(server, queues)
        try:
            await listener.set_accepted_queues([0])
            yield
        finally:
            await listener.close()


async def _run_or_cancel_on_shutdown(
    shutdown_requested: asyncio.Event, coroutine: Coroutine[Any, Any, Any]
) -> bool:
    """Runs a coroutine, cancelled on shutdown; returns whether it completed before a shutdown."""
    work_task, shutdown_task = (
        asyncio.ensure_future(coroutine),
        asyncio.ensure_future(shutdown_requested.wait()),
    )
    try:
        await asyncio.wait({work_task, shutdown_task}, return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            # Raises the error of the work, if there was one.
            work_task.result()
        return not shutdown_task.done()
    finally:
        work_task.cancel()
        shutdown_task.cancel()
        await asyncio.gather(work_task, shutdown_task, return_exceptions=True)
