"""A place among the workers of the parent process, and the process that fills it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

STABLE_WORKER_SECONDS = 10
"""A worker that ran this long is replaced immediately, others after a growing delay."""

MIN_RESTART_DELAY_SECONDS, MAX_RESTART_DELAY_SECONDS = 0.5, 30

log = structlog.get_logger()


class WorkerStartError(Exception):
    """Raised if a worker exits before it accepts connections; the text is for the operator."""


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
        """Starts a process and waits until it accepts connections; raises WorkerStartError."""
        parent_end, worker_end = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *_build_worker_command(),
                stdin=worker_end.fileno(),
                process_group=0,  # the terminal's Ctrl-C must reach only the parent
            )
        except OSError as error:
            parent_end.close()
            raise WorkerStartError(f"no process can be started ({error.strerror})") from None
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
            raise WorkerStartError(
                f"a worker exited before it accepted connections ({exit_description}); see the log"
            )
        if reason := json.loads(line):
            raise WorkerStartError(reason)
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
            reason = str(error) if isinstance(error, WorkerStartError) else type(error).__name__
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
