"""The parent process: reserves the ports, runs the workers, and handles signals."""

import asyncio
import json
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.admin.authentication import create_auth_middleware
from gateway.config import OperatorError
from gateway.config.sections import build_url
from gateway.config.settings import ConfigurationError, Settings
from gateway.operator.preflight import check_settings_are_runnable
from gateway.server.admin_server import AdminServer
from gateway.server.listener import find_bound_port, open_port, reserve_port
from gateway.server.process import (
    ProcessLifetime,
    calculate_max_shutdown_seconds,
    install_shutdown_event,
)
from gateway.server.workers.admin_port import create_workers_admin_application

STABLE_WORKER_SECONDS = 10
"""A worker that ran this long is replaced immediately, others after a growing delay."""

MIN_RESTART_DELAY_SECONDS, MAX_RESTART_DELAY_SECONDS = 0.5, 30

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker is started with."""

    config_file: str | None
    port: int
    admin_socket: str


class Worker:
    """A place among the workers: its process, which is replaced when it exits."""

    def __init__(self, start: WorkerStart) -> None:
        self._start = start
        self.process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.admin_socket: Path | None = None
        """The Unix socket of its admin pages, while it accepts connections."""

    async def start(self) -> None:
        """Starts a process and waits until it accepts connections; raises OperatorError."""
        parent_end, worker_end = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *_build_worker_command(),
                stdin=worker_end.fileno(),
                process_group=0,  # the terminal's Ctrl-C must reach only the parent
            )
        except OSError as error:
            parent_end.close()
            raise OperatorError(f"no process can be started ({error.strerror})") from None
        finally:
            worker_end.close()
        reader, writer = await asyncio.open_connection(sock=parent_end)
        self._writer = writer
        line = b""
        with suppress(ConnectionError):
            writer.write(json.dumps(asdict(self._start)).encode() + b"\n")
            line = await reader.readline()
        if not line:
            exit_description = describe_exit_code(await self.process.wait())
            raise OperatorError(
                f"a worker exited before it accepted connections ({exit_description}); see the log"
            )
        if reason := json.loads(line):
            raise OperatorError(reason)
        self.admin_socket = Path(self._start.admin_socket)

    async def replace_when_exited(self, stop_event: asyncio.Event) -> None:
        """Whenever the process exits, starts another, unless at a shutdown."""
        delay, started_at = 0.0, time.monotonic()
        while self.process:
            exit_code = await self.process.wait()
            self._release_admin_socket()
            if stop_event.is_set():
                return
            is_stable = time.monotonic() - started_at >= STABLE_WORKER_SECONDS
            delay = 0.0 if is_stable else _increase_delay(delay)
            log.error(
                "worker_exited",
                worker_pid=self.process.pid,
                reason=describe_exit_code(exit_code),
                requests_in_flight="lost" if exit_code else "finished",
                restart_delay_seconds=delay,
            )
            await asyncio.sleep(delay)
            while not await self._start_again():
                delay = _increase_delay(delay)
                await asyncio.sleep(delay)
            started_at = time.monotonic()

    async def _start_again(self) -> bool:
        try:
            await self.start()
        except Exception as error:  # noqa: BLE001 - the place must be filled after any error
            reason = str(error) if isinstance(error, OperatorError) else type(error).__name__
            log.error("worker_start_failed", reason=reason)
            return False
        log.info("worker_started", worker_pid=self.process and self.process.pid)
        return True

    def send_signal(self, signal_number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self.process:
                self.process.send_signal(signal_number)

    async def wait_for_exit(self) -> None:
        if self.process:
            await self.process.wait()
            self._release_admin_socket()

    def _release_admin_socket(self) -> None:
        if self._writer:
            self._writer.close()
        if self.admin_socket:
            # A worker that was killed has not removed it.
            self.admin_socket.unlink(missing_ok=True)
            self.admin_socket = None


def _build_worker_command() -> list[str]:
    # Import modules from where this process did, not from the current directory.
    path_options = [] if str(Path.cwd()) in sys.path else ["-P"]
    return [sys.executable, *path_options, "-m", "gateway.server.workers"]


def _increase_delay(delay: float) -> float:
    return min(MAX_RESTART_DELAY_SECONDS, max(MIN_RESTART_DELAY_SECONDS, 2 * delay))


def describe_exit_code(exit_code: int) -> str:
    """Describes the exit code of a process, or the signal that killed it."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


KILL_MARGIN_SECONDS = 10
"""Seconds that the parent waits beyond a worker's shutdown limit before it kills the worker."""

MAX_SOCKET_FOLDER_LENGTH = 90
"""The path of a Unix socket is limited to about 100 bytes."""


async def supervise_workers(settings: Settings, announce: Callable[[str, str], None]) -> int:
    """Runs workers until SIGTERM or SIGINT; returns the exit code, 1 if a worker was killed.

    ``announce`` is called with the client and admin URLs when all workers accept connections.
    Raises OperatorError.
    """
    stop_event, lifetime = install_shutdown_event(), ProcessLifetime()
    check_settings_are_runnable(settings)
    server = settings.server
    # Before any worker starts, so that a port in use is reported at once, and only once.
    reserved_port = await reserve_port(server.host, server.port, "SERVER__PORT")
    port = find_bound_port(reserved_port)
    with _create_socket_folder() as folder:
        file = settings.config_file.path
        start = str(file) if file else None, port
        workers = [
            # The number, which is a label of its metrics, stays when it is replaced.
            Worker(WorkerStart(*start, admin_socket=str(folder / str(number))))
            for number in range(1, server.workers + 1)
        ]
        async with _serve_admin_port(settings, workers) as admin_port:
            try:
                tasks = [asyncio.ensure_future(worker.start()) for worker in workers]
                if await _run_until_stopped(tasks, stop_event):
                    urls = (
                        build_url(server.host, port, server.scheme),
                        build_url(server.admin_host, admin_port),
                    )
                    lifetime.log_startup_complete(url=urls[0], admin_url=urls[1])
                    _forward_reloads_to_workers(workers)
                    announce(*urls)
                    tasks = [
                        asyncio.ensure_future(worker.replace_when_exited(stop_event))
                        for worker in workers
                    ]
                    await _run_until_stopped(tasks, stop_event)
            finally:
                lifetime.record_shutdown_start(workers_left=len(list_admin_sockets(workers)))
                exit_code = await _stop_workers(workers, settings)
    if exit_code == 0:
        lifetime.log_shutdown_complete()
    return exit_code


def list_admin_sockets(workers: list[Worker]) -> list[Path]:
    """Returns the admin sockets of the workers that accept connections."""
    return [worker.admin_socket for worker in workers if worker.admin_socket]


def _forward_reloads_to_workers(workers: list[Worker]) -> None:
    def forward_reload() -> None:
        for worker in workers:
            if worker.admin_socket:
                worker.send_signal(signal.SIGHUP)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, forward_reload)


async def _run_until_stopped(tasks: list[asyncio.Task[None]], stop_event: asyncio.Event) -> bool:
    """Runs tasks, cancelled on shutdown; returns whether they completed before. Raises their errors."""
    work: asyncio.Future[Any] = asyncio.gather(*tasks)
    stop_task: asyncio.Future[Any] = asyncio.ensure_future(stop_event.wait())
    try:
        await asyncio.wait((work, stop_task), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return not stop_event.is_set()
    finally:
        for task in (*tasks, stop_task):
            task.cancel()
        await asyncio.gather(work, *tasks, stop_task, return_exceptions=True)


async def _stop_workers(workers: list[Worker], settings: Settings) -> int:
    """Stops the workers gracefully; returns 1 if one had to be killed."""
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    exits = asyncio.gather(*(worker.wait_for_exit() for worker in workers))
    try:
        async with asyncio.timeout(calculate_max_shutdown_seconds(settings) + KILL_MARGIN_SECONDS):
            await asyncio.shield(exits)
    except TimeoutError:
        log.error(
            "workers_killed", reason="they did not stop in time; requests in flight were lost"
        )
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        await exits
        return 1
    return 0


@asynccontextmanager
async def _serve_admin_port(settings: Settings, workers: list[Worker]) -> AsyncIterator[int]:
    """Serves the admin port for all workers; yields the port."""
    server = settings.server
    application = create_workers_admin_application(
        lambda: list_admin_sockets(workers),
        # Authenticated here and not in the workers, whose sockets only this process can reach.
        [create_auth_middleware(server)],
    )
    address = server.admin_host, server.admin_port, "SERVER__ADMIN_PORT"
    async with AdminServer(application) as admin_server:
        with closing(await open_port(admin_server, *address)) as listener:
            yield find_bound_port(listener)


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
