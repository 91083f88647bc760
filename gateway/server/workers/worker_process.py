"""A worker process, as the supervisor controls it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from gateway.admin.session import get_session_secret
from gateway.server.listener import AcceptQueue
from gateway.server.workers.worker_config import WorkerConfig, encode_message


class WorkerStartError(Exception):
    """Raised if a worker exits before it accepts connections; the text is for the operator."""


@dataclass(slots=True)
class WorkerProcess:
    """A started worker. ``admin_socket`` is the Unix socket of its admin pages."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    admin_socket: Path
    is_accepting: bool = False

    @classmethod
    async def start(
        cls,
        config: Path | None,
        listening_queues: Sequence[AcceptQueue],
        queue_numbers: Sequence[int],
        admin_socket: Path,
    ) -> Self:
        """Starts a worker with a configuration and inherited sockets; raises WorkerStartError."""
        parent_end, worker_end = socket.socketpair()
        descriptors = [
            [listening_socket.fileno() for listening_socket in queue] for queue in listening_queues
        ]
        config_path = str(config) if config else None
        worker_config = WorkerConfig(
            config_path, descriptors, list(queue_numbers), worker_end.fileno(), str(admin_socket)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *_build_worker_command(),
                worker_config.to_json(),
                stdin=subprocess.DEVNULL,
                pass_fds=(*chain(*descriptors), worker_end.fileno()),
                process_group=0,  # the terminal's Ctrl-C must reach only the supervisor
            )
        except OSError as error:
            parent_end.close()
            raise WorkerStartError(f"no process can be started ({error.strerror})") from None
        finally:
            # The supervisor must close its copy of the worker's end: it detects the worker's exit
            # by the end of the stream.
            worker_end.close()
        reader, writer = await asyncio.open_connection(sock=parent_end)
        writer.write(encode_message(session_secret=get_session_secret().hex()))
        return cls(process, reader, writer, admin_socket)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait_until_accepting(self) -> None:
        """Waits for the worker's first message; raises WorkerStartError."""
        with suppress(ConnectionError):
            line = await self.reader.readline()
            message = json.loads(line) if line else {}
            self.is_accepting = message.get("accepts", False)
            if reason := message.get("failed"):
                raise WorkerStartError(reason)
        if not self.is_accepting:
            exit_description = describe_exit_code(await self.process.wait())
            raise WorkerStartError(
                f"a worker exited before it accepted connections ({exit_description}); see the log"
            )

    def assign_queues(self, queues: Iterable[int]) -> None:
        """Tells the worker to accept connections from these queues only."""
        self.writer.write(encode_message(queues=sorted(queues)))

    def retire(self) -> None:
        """Tells the worker to accept no new connections and to exit after its last response."""
        self.is_accepting = False
        self.writer.write(encode_message(retire=True))

    def send_signal(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        self.is_accepting = False
        with suppress(ProcessLookupError):
            self.process.send_signal(signal_number)

    async def wait_for_exit(self) -> int:
        """Waits until the process exits; returns its exit code, negative for a signal."""
        exit_code = await self.process.wait()
        self.is_accepting = False
        self.writer.close()
        # A worker that was killed has not removed it.
        self.admin_socket.unlink(missing_ok=True)
        return exit_code


def _build_worker_command() -> list[str]:
    # Import modules from where this process did, not from the current directory.
    path_options = [] if str(Path.cwd()) in sys.path else ["-P"]
    return [sys.executable, *path_options, "-m", "gateway.server.workers"]


def describe_exit_code(exit_code: int) -> str:
    """Describes the exit code of a process, or the signal that killed it."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"
